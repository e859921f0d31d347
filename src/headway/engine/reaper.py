"""Reapers: two small ancestors of a fork server that kill whatever it leaves behind.

    driver ── reaper ── reaper ── fork server ── workers ── what they have started

A reaper waits for the fork server and the driver to end, does nothing else and loads nothing. The fork server ends all
its workers when the driver has ended. If the fork server is killed as well, its descendants become children of the
nearest reaper (a child subreaper, prctl(2)), which kills them. There are two reapers, so that if one of them is killed,
together with the driver and the fork server or long before, the other still does this.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import os
import select
import shutil
import signal
import time
from collections.abc import Collection
from typing import NoReturn

PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 0.5  # how long the fork server may take to end after the driver; it may be importing or stopped
_STARTED_AT = time.time()
_CLOCK_RESOLUTION_S = 0.1  # clocks of filesystems are coarse
TRACKER_S = 1.0  # how long resource trackers may take to end after the processes that they work for
_PAUSE_S = 0.01
_ROUNDS = 10  # in which the members of a group, which may fork, are killed one by one before all are killed together
_COMMAND_BYTES = 4096
_LISTING_LASTS_S = 0.05
prctl = ctypes.CDLL(None, use_errno=True).prctl


def fork_under_reapers(driver: int, directory: str) -> None:
    """Fork twice: the innermost child returns as the fork server, and the other two processes become its reapers.

    Args:
        driver: A pidfd of the driver.
        directory: The directory for temporary files of the fork server and its workers; removed at the end.
    """
    # Block SIGTERM only, whatever the driver blocked. SIGTERM is for the driver and for workers, which unblock it when
    # they can handle it. systemd and Slurm send it to all processes of a program: if it ended the fork server, the
    # workers would end with it.
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGTERM])
    for grace_s in (2 * _GRACE_S, _GRACE_S):  # the inner reaper goes first
        adopt_orphans()
        child = os.fork()
        if child:
            try:
                _close_all_but(driver)
                _guard(child, driver, directory, grace_s)
            finally:
                os._exit(70)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parents end."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """Kill all children and, as their parents end, all descendants; return when the last one has ended.

    Resource trackers are killed last, if they have not ended by themselves (see :func:`kill_group`).
    """
    killed: set[int] = set()
    patience_s = TRACKER_S
    with contextlib.suppress(ChildProcessError, OSError):
        while True:
            left = set(children(os.getpid()))
            trackers = set(filter(is_resource_tracker, left - killed)) if patience_s > 0 else set()
            for pid in left - killed - trackers:  # each once: there may be thousands
                send_signal(pid, signal.SIGKILL)
                killed.add(pid)
            only_trackers = bool(trackers) and trackers == left
            ended = _reap(wait=not only_trackers)
            if only_trackers and not ended:
                time.sleep(_PAUSE_S)
                patience_s -= _PAUSE_S
            killed -= ended
            sweep_shared_memory(ended)


def _reap(*, wait: bool) -> set[int]:
    """Reap all children that have ended; raises ChildProcessError if there are none. ``wait``: until one has ended."""
    ended = {os.waitpid(-1, 0 if wait else os.WNOHANG)[0]} - {0}
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            ended.add(pid)
    return ended


def children(pid: int) -> list[int]:
    """Return the children of a single-threaded process."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a worker: SIGKILL to its complete process group, any other signal to its process only."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    if number == signal.SIGKILL:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill_group(pid)


def kill_group(leader: int) -> None:
    """Kill a process group, except multiprocessing's resource trackers.

    A tracker removes the semaphores and the shared memory of processes that were killed, and ends when all processes
    that it works for have ended.
    """
    if leader in _groups_with_trackers(int(time.monotonic() / _LISTING_LASTS_S)):
        dying: set[int] = set()
        for _ in range(_ROUNDS):
            others = {pid for pid in {*_group(leader)} - dying if not is_resource_tracker(pid)}
            if not others:
                return
            for pid in others:
                _kill_member(pid, leader)
            dying |= others
    os.killpg(leader, signal.SIGKILL)


def _kill_member(pid: int, leader: int) -> None:
    """Kill a process if it still belongs to the group: its number may have been given to another process."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            if os.getpgid(pid) == leader:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)


@functools.lru_cache(maxsize=1)
def _groups_with_trackers(moment: int) -> frozenset[int]:
    """Return the groups that contain resource trackers, listed once per moment for all groups that are killed then."""
    found = set()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if is_resource_tracker(pid):
                found.add(os.getpgid(pid))
    return frozenset(found)


def _group(leader: int) -> list[int]:
    """Return the running processes of a group."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if os.getpgid(pid) == leader and not _is_zombie(pid):
                found.append(pid)
    return found


def _is_zombie(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")


def is_resource_tracker(pid: int) -> bool:
    """Whether a process is a resource tracker, of the standard library or of joblib."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return b"resource_tracker import main" in file.read(_COMMAND_BYTES)
    return False


def sweep_shared_memory(pids: Collection[int]) -> None:
    """Remove shared memory of processes that have ended, as a loader process may be killed before torch unlinks it.

    Containers may share ``/dev/shm`` but not their process numbers. Files of other users and files older than this
    process cannot belong to one of its children.
    """
    for path in glob.iglob("/dev/shm/torch_*_*") if pids else ():
        pid = path.split("_")[1]
        if not pid.isdecimal() or int(pid) not in pids:
            continue
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            if status.st_uid == os.geteuid() and status.st_ctime >= _STARTED_AT - _CLOCK_RESOLUTION_S:
                os.unlink(path)


def _guard(child: int, driver: int, directory: str, grace_s: float) -> NoReturn:
    guarded: int | None = child
    while guarded is not None:
        ended = os.pidfd_open(guarded)
        if driver in _first_of(ended, driver):
            _first_of(ended, timeout_s=grace_s)
            break
        os.waitpid(guarded, 0)
        guarded = _adopted_fork_server()
        os.close(ended)
    end_children()
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


def _adopted_fork_server() -> int | None:
    """Return the fork server if it is this process's child now because the inner reaper was killed; otherwise None.

    The inner reaper leaves no child behind unless it is killed. A child that the fork server left behind is not a fork
    server.
    """
    left = children(os.getpid())
    return left[0] if len(left) == 1 and _is_fork_server(left[0]) else None


def _is_fork_server(pid: int) -> bool:
    """Whether a process was forked from this one and has not changed its session since, as workers do."""
    with contextlib.suppress(OSError):
        return os.getsid(pid) == os.getsid(0)
    return False


def _first_of(*pidfds: int, timeout_s: float | None = None) -> list[int]:
    poll = select.poll()
    for fd in pidfds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)]


def _close_all_but(kept: int) -> None:
    """Close inherited files, including the control socket: the driver must see it close when the fork server ends."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != kept:
            with contextlib.suppress(OSError):  # the file descriptor of the listing itself
                os.close(fd)
