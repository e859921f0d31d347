"""A process seen from outside: what the kernel says of it, and its stacks where it cannot tell them itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

STACKS_SIGNAL = signal.SIGRTMIN + 12  # on it a worker's faulthandler writes all stacks, even if Python is stuck
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Vital:
    """``state``: as in /proc (R runs, S sleeps, D waits for a disk, T is stopped, Z is dead); "" where it is not known.

    ``cpu_s``: what its main thread has used; ``all_cpu_s``: all its threads.
    """

    state: str = ""
    cpu_s: float = 0.0
    all_cpu_s: float = 0.0
    waits_in: str = ""  # the kernel function that it sleeps in, where the kernel tells


def vital(pid: int) -> Vital | None:
    """None where there is no such process."""
    try:
        main = _stat(Path(f"/proc/{pid}/task/{pid}/stat"))
        whole = _stat(Path(f"/proc/{pid}/stat"))
        waits_in = Path(f"/proc/{pid}/wchan").read_text().strip("0\n")
    except (OSError, IndexError, ValueError):
        return None
    return Vital(whole[0], main[1], whole[1], waits_in)


def _stat(path: Path) -> tuple[str, float]:
    fields = path.read_text().rpartition(")")[2].split()
    return fields[0], (int(fields[11]) + int(fields[12])) / _TICKS


class Outside:
    """The stacks of a process that does not answer: asked for now, read a moment later."""

    def __init__(self, pid: int, file: str) -> None:
        self._file = Path(file) if file else None
        self._before = self._size()
        self._spy: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        if self._file is not None and self._file.exists():  # else it is not prepared, and would die of the signal
            with contextlib.suppress(OSError):
                os.kill(pid, STACKS_SIGNAL)
        if py_spy := shutil.which("py-spy"):
            self._output = tempfile.TemporaryFile()
            self._spy = subprocess.Popen(
                [py_spy, "dump", "--nonblocking", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
            )

    def _size(self) -> int:
        try:
            return self._file.stat().st_size if self._file is not None else 0
        except OSError:
            return 0

    def read(self) -> tuple[str, str]:
        """What faulthandler wrote since, and what py-spy saw; empty where there is nothing."""
        return self._faulthandlers(), self._py_spys()

    def close(self) -> None:
        """Nobody wants to know any more."""
        self._py_spys()

    def _faulthandlers(self) -> str:
        if self._file is None:
            return ""
        try:
            return self._file.read_bytes()[self._before :].decode(errors="replace")
        except OSError:
            return ""

    def _py_spys(self) -> str:
        spy, self._spy = self._spy, None
        if spy is None or self._output is None:
            return ""
        if spy.poll() is None:
            spy.kill()
        spy.wait()
        with self._output as output:
            output.seek(0)
            return output.read().decode(errors="replace")
