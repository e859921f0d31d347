"""Statistics of a process and its descendants from ``/proc``, and stacks of a process that is not responding.

    /proc/*/stat ──▶ ProcessTable ──▶ ProcessTree(pid): descendants, its session, orphans ──▶ ProcessStats

CPU time alone does not distinguish work from a stall: on a busy machine, even a thread that always computes gets only a
few percent of a core. So the statistics count the time in which threads *could run*: they either ran or waited for a
CPU (the run delay in ``schedstat``).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

STACKS_SIGNAL = signal.SIGRTMIN + 12  # makes a worker's faulthandler write all stacks, even if Python is stuck
OWN_THREADS = "hw-"  # prefix of the kernel names of Headway's threads in a worker, which are not counted as work
TABLE_LASTS_S = 0.2  # how long one reading of /proc is used, so that it serves all ranks
_TICKS = os.sysconf("SC_CLK_TCK")
_tgkill = getattr(ctypes.CDLL(None), "tgkill", None)  # not in every C library


@dataclass(frozen=True)
class ProcessStats:
    """Statistics of one process and its descendants. Only differences between times are meaningful.

    Args:
        state: The state of its main thread, as in /proc: R running, S sleeping, D waiting for a disk, T stopped,
            Z ended; "" if unknown.
        cpu_s: The CPU time of its main thread.
        delay_s: How long its main thread waited for a CPU.
        all_s: How long its threads, except Headway's, ran or waited for a CPU.
        tree_s: How long the threads of the process and its descendants, except Headway's, ran or waited for a CPU.
        waits_in: The kernel function that it sleeps in; "" if unknown.
        moved_bytes: The bytes that the process and its descendants read from or wrote to files and pipes.
    """

    state: str = ""
    cpu_s: float = 0.0
    delay_s: float = 0.0
    all_s: float = 0.0
    tree_s: float = 0.0
    waits_in: str = ""
    moved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A process in the table. ``reaped_s``: the CPU time of its children that have ended and were reaped."""

    pid: int
    state: str
    parent: int
    session: int
    cpu_s: float
    reaped_s: float
    started: int


class ProcessTable:
    """All processes of this machine; read again after ``TABLE_LASTS_S``."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._read = float("-inf")

    def entries(self) -> Mapping[int, Entry]:
        now = time.monotonic()
        if now - self._read > TABLE_LASTS_S:
            self._read = now
            self._entries = {entry.pid: entry for entry in _all_entries()}
        return self._entries


def _all_entries() -> Iterator[Entry]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                yield _entry(int(name))


def _entry(pid: int) -> Entry:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    used, reaped = (int(fields[11]) + int(fields[12])) / _TICKS, (int(fields[13]) + int(fields[14])) / _TICKS
    return Entry(pid, fields[0], int(fields[1]), int(fields[3]), used, reaped, int(fields[19]))


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def members(root: int, entries: Mapping[int, Entry], known: Mapping[int, int] | None = None) -> set[int]:
    """Return the processes started by ``root``: its descendants, its session, and those in ``known`` (pid -> start).

    A process whose parent ended gets a different parent, so its origin is only visible from its session or ``known``.
    """
    children: dict[int, list[int]] = {}
    for entry in entries.values():
        children.setdefault(entry.parent, []).append(entry.pid)
    pending = [pid for pid, started in (known or {}).items() if pid in entries and entries[pid].started == started]
    pending += [entry.pid for entry in entries.values() if entry.session == root]
    pending.append(root)
    found: set[int] = set()
    while pending:
        pid = pending.pop()
        if pid not in found and pid in entries:
            found.add(pid)
            pending += children.get(pid, [])
    return found


@dataclass
class _Usage:
    """The usage of a process up to one moment."""

    runnable_s: float
    reaped_s: float
    moved_bytes: int = 0


@dataclass
class ProcessTree:
    """A worker's process and its descendants; each :meth:`look` adds what they have used since the previous one."""

    pid: int
    _known: dict[int, int] = field(default_factory=dict)
    _last: dict[int, _Usage] = field(default_factory=dict)
    _all_s: float = 0.0
    _tree_s: float = 0.0
    _moved_bytes: int = 0

    def look(self, table: ProcessTable) -> ProcessStats | None:
        """Return the statistics; None if the process has ended."""
        entries = table.entries()
        if self.pid not in entries:
            return None
        first = not self._last
        now = {pid: _usage(entries[pid]) for pid in members(self.pid, entries, self._known)}
        for pid, seen in now.items():
            before = self._last.get(pid) or (seen if first else _Usage(0.0, seen.reaped_s))
            grown = max(0.0, seen.runnable_s - before.runnable_s)
            self._tree_s += grown + max(0.0, seen.reaped_s - before.reaped_s)
            self._all_s += grown if pid == self.pid else 0.0
            self._moved_bytes += max(0, seen.moved_bytes - before.moved_bytes)
        self._last = now
        self._known = {pid: entries[pid].started for pid in now}
        try:
            state = _entry(self.pid).state
            cpu_s, delay_s = _times(f"/proc/{self.pid}/task/{self.pid}")
            waits_in = _waits_in(self.pid)
        except (OSError, IndexError, ValueError):
            return None
        return ProcessStats(state, cpu_s, delay_s, self._all_s, self._tree_s, waits_in, self._moved_bytes)


def exit_code_of_zombie(pid: int) -> int | None:
    """Return the exit code of a process that has ended but was not reaped; None if it has not ended, or was reaped."""
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int(fields[-1])) if fields[0] == "Z" else None


def _waits_in(pid: int) -> str:
    try:
        return _read(f"/proc/{pid}/wchan").strip("0\n")
    except OSError:  # not every user is allowed to read it
        return ""


def _usage(entry: Entry) -> _Usage:
    """Return how long the process's threads, including ended ones but not Headway's, could run, and its I/O."""
    runnable_s = entry.cpu_s
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{entry.pid}/task"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                directory = f"/proc/{entry.pid}/task/{thread}"
                cpu_s, delay_s = _times(directory)
                runnable_s += -cpu_s if _read(f"{directory}/comm").startswith(OWN_THREADS) else delay_s
    return _Usage(runnable_s, entry.reaped_s, _moved_bytes(entry.pid))


def _moved_bytes(pid: int) -> int:
    """Return the bytes read and written, except on sockets, which the kernel does not count."""
    try:
        counts = dict(line.split(": ") for line in _read(f"/proc/{pid}/io").splitlines())
        return int(counts["rchar"]) + int(counts["wchar"])
    except (OSError, KeyError, ValueError):
        return 0


def _times(directory: str) -> tuple[float, float]:
    """Return how long a thread ran, and how long it waited for a CPU (0 if the kernel has no ``schedstat``)."""
    try:
        ran, waited, *_ = _read(f"{directory}/schedstat").split()
        return int(ran) / 1e9, int(waited) / 1e9
    except FileNotFoundError:
        fields = _read(f"{directory}/stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS, 0.0


def name_this_thread(name: str) -> None:
    """Give this thread a name for the kernel, ``top`` and ``py-spy``; only 15 characters are kept."""
    with contextlib.suppress(OSError):
        Path("/proc/thread-self/comm").write_text(name)


def _signal_own_thread(pid: int, number: int) -> None:
    """Send a signal to one of Headway's threads in a worker, or to the process if there is none.

    A signal ends a blocked system call of the thread that handles it. The user's write() to a pipe would return early,
    with only a part of the bytes written.
    """
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            is_own = _read(f"/proc/{pid}/task/{thread}/comm").startswith(OWN_THREADS)
            if is_own and _tgkill is not None and _tgkill(pid, int(thread), number) == 0:
                return
    os.kill(pid, number)


class OutsideStacks:
    """The stacks of a process that is not responding: requested now, read a moment later.

    Args:
        pid: The process.
        file: The file to which its faulthandler writes on ``STACKS_SIGNAL``; "" if it has no handler.
    """

    def __init__(self, pid: int, file: str) -> None:
        self._file = Path(file) if file else None
        self._before = self._size()
        self._spy: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        if self._file is not None and self._file.exists():  # without a handler, the signal would kill the process
            with contextlib.suppress(OSError):
                _signal_own_thread(pid, STACKS_SIGNAL)
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
        """Return the output of faulthandler since the request, and the output of py-spy; either may be empty."""
        return self._faulthandler_output(), self._py_spy_output()

    def close(self) -> None:
        """Kill py-spy if it is still running."""
        self._py_spy_output()

    def _faulthandler_output(self) -> str:
        if self._file is None:
            return ""
        try:
            return self._file.read_bytes()[self._before :].decode(errors="replace")
        except OSError:
            return ""

    def _py_spy_output(self) -> str:
        spy, self._spy = self._spy, None
        if spy is None or self._output is None:
            return ""
        if spy.poll() is None:
            spy.kill()
        spy.wait()
        with self._output as output:
            output.seek(0)
            return output.read().decode(errors="replace")
