"""A program whose workers are killed while it trains: its steps are observed, and all its processes ended.

Every worker notes each step that it has finished (``clock.stepping`` of the programs), so that the same eyes see every
contestant: who works now, how far it is, and when a process that was not there before has finished its first step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scenarios.process_tree import kill_all, tree

GLANCE_S = 0.02
LEAVE_S = 20.0  # after Ctrl-C: time to leave in order


class Mark(NamedTuple):
    """The end of one step of one worker; step -1 is the first line of the training function."""

    rank: int
    pid: int
    step: int
    time: float


class ObservedProgram:
    def __init__(self, process: subprocess.Popen[bytes], marked: Path, output: Path) -> None:
        self._process = process
        self._output = output
        self._file = marked.open()
        self._half = ""
        self._marks: list[Mark] = []

    @property
    def marks(self) -> list[Mark]:
        """All marks so far, in the order in which they were written."""
        *lines, self._half = (self._half + self._file.read()).split("\n")
        for line in lines:
            rank, pid, step, when = line.split()
            self._marks.append(Mark(int(rank), int(pid), int(step), float(when)))
        return self._marks

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.poll()

    @property
    def ended(self) -> str:
        """A description of an unexpected exit, or an empty text."""
        return "" if self.code is None else f"it ended with code {self.code}"

    def wait(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Wait for a condition; False if the time limit or the end of the program comes first."""
        deadline = time.monotonic() + limit_s
        while not until():
            if time.monotonic() > deadline or self.ended:
                return False
            time.sleep(GLANCE_S)
        return True

    def worker(self, rank: int) -> int:
        """The process id of the current worker of a rank."""
        return next(mark.pid for mark in reversed(self.marks) if mark.rank == rank)

    def kill(self, rank: int) -> float:
        """Kill the worker of a rank; return the time."""
        pid, when = self.worker(rank), time.time()
        os.kill(pid, signal.SIGKILL)
        return when

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def observed(command: Sequence[str], folder: Path, **env: str) -> Iterator[ObservedProgram]:
    """Run a program; at the end interrupt it, then kill what is left."""
    place = Path(tempfile.mkdtemp(prefix="observed-", dir=folder))
    marked, output = place / "marks", place / "output"
    marked.touch()
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "BENCH_MARKS": str(marked), **env},
            start_new_session=True,
        )
    found = ObservedProgram(process, marked, output)
    try:
        yield found
    finally:
        everybody = tree(process.pid)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_S)
        kill_all([*everybody, *tree(process.pid)])
        process.wait()
        found.close()
