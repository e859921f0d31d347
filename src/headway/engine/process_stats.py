"""A process seen from outside: what the kernel says of it and of all that it has started, and its stacks.

    /proc/*/stat ──▶ ProcessTable ──▶ ProcessTree(pid): children and theirs, its session, orphans ──▶ Vital

CPU time alone does not tell work from standing still: on a crowded machine a thread that computes without a pause gets
a few percent of a core. So the time is counted for which threads *could run*: that they ran, and that they waited for
a CPU (the run delay in ``schedstat``).
"""

from __future__ import annotations

import contextlib
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

STACKS_SIGNAL = signal.SIGRTMIN + 12  # on it a worker's faulthandler writes all stacks, even if Python is stuck
OWN_THREADS = "hw-"  # how the kernel's names of our own threads in a worker begin: they are no sign of life
TABLE_LASTS_S = 0.2  # for as long as the ranks are looked at one after the other
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessStats:
    """``state``: as in /proc (R runs, S sleeps, D waits for a disk, T is stopped, Z is dead); "" where it is not known.

    All times are in seconds since some moment; only their growth means something.

    Args:
        state: Of its main thread.
        cpu_s: What its main thread has used.
        delay_s: For how long its main thread has waited for a CPU.
        all_s: For how long its threads ran or waited for a CPU, our own ones left out.
        tree_s: The same of all its processes.
        waits_in: The kernel function that it sleeps in, where the kernel tells.
        moved_bytes: What all its processes have read from files and pipes, and written to them.
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
    """A process in the table. ``reaped_s``: CPU time of children that have ended and were waited for."""

    pid: int
    state: str
    parent: int
    session: int
    cpu_s: float
    reaped_s: float
    started: int


class ProcessTable:
    """All processes of this machine, read again when the last reading is too old."""

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
    """The processes that come from ``root``: its descendants, its session, and those of ``known`` (pid -> start).

    A process whose parent has ended belongs to somebody else by then; its session, or that we have seen it before, says
    where it comes from.
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
class _Seen:
    """What was known of a process at the last look."""

    runnable_s: float
    reaped_s: float
    moved_bytes: int = 0


@dataclass
class ProcessTree:
    """A worker's process with all that it has started, looked at again and again."""

    pid: int
    _known: dict[int, int] = field(default_factory=dict)
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _all_s: float = 0.0
    _tree_s: float = 0.0
    _moved_bytes: int = 0

    def look(self, table: ProcessTable) -> ProcessStats | None:
        """None where there is no such process."""
        entries = table.entries()
        if self.pid not in entries:
            return None
        first = not self._seen
        now = {pid: _seen(entries[pid]) for pid in members(self.pid, entries, self._known)}
        for pid, seen in now.items():
            before = self._seen.get(pid) or (seen if first else _Seen(0.0, seen.reaped_s))
            grown = max(0.0, seen.runnable_s - before.runnable_s)
            self._tree_s += grown + max(0.0, seen.reaped_s - before.reaped_s)
            self._all_s += grown if pid == self.pid else 0.0
            self._moved_bytes += max(0, seen.moved_bytes - before.moved_bytes)
        self._seen = now
        self._known = {pid: entries[pid].started for pid in now}
        try:
            state = _entry(self.pid).state
            cpu_s, delay_s = _times(f"/proc/{self.pid}/task/{self.pid}")
            waits_in = _waits_in(self.pid)
        except (OSError, IndexError, ValueError):
            return None
        return ProcessStats(state, cpu_s, delay_s, self._all_s, self._tree_s, waits_in, self._moved_bytes)


def _waits_in(pid: int) -> str:
    try:
        return _read(f"/proc/{pid}/wchan").strip("0\n")
    except OSError:  # the kernel does not tell everybody
        return ""


def _seen(entry: Entry) -> _Seen:
    """For how long its threads, those that have ended included, ran or waited for a CPU; our own are left out."""
    runnable_s = entry.cpu_s
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{entry.pid}/task"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                folder = f"/proc/{entry.pid}/task/{thread}"
                cpu_s, delay_s = _times(folder)
                runnable_s += -cpu_s if _read(f"{folder}/comm").startswith(OWN_THREADS) else delay_s
    return _Seen(runnable_s, entry.reaped_s, _moved_bytes(entry.pid))


def _moved_bytes(pid: int) -> int:
    """Without what goes through sockets, which the kernel does not count."""
    try:
        counts = dict(line.split(": ") for line in _read(f"/proc/{pid}/io").splitlines())
        return int(counts["rchar"]) + int(counts["wchar"])
    except (OSError, KeyError, ValueError):
        return 0


def _times(folder: str) -> tuple[float, float]:
    """For how long a thread ran, and waited for a CPU; without the scheduler's figures the latter is not known."""
    try:
        ran, waited, *_ = _read(f"{folder}/schedstat").split()
        return int(ran) / 1e9, int(waited) / 1e9
    except FileNotFoundError:
        fields = _read(f"{folder}/stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS, 0.0


def name_this_thread(name: str) -> None:
    """So that the kernel, ``top`` and ``py-spy`` know a thread of ours; of the name 15 characters are kept."""
    with contextlib.suppress(OSError):
        Path("/proc/thread-self/comm").write_text(name)


class OutsideStacks:
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
