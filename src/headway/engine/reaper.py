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
    """Kill all children and, as their parents end, all descendants; return when the last one has ended."""
    killed: set[int] = set()
    with contextlib.suppress(ChildProcessError, OSError):
        while True:
            for pid in set(children(os.getpid())) - killed:  # each once: there may be thousands
                send_signal(pid, signal.SIGKILL)
                killed.add(pid)
            ended = _reap()
            killed -= ended
            sweep_shared_memory(ended)


def _reap() -> set[int]:
    """Wait until a child has ended, and reap all that have; raises ChildProcessError if there are no children."""
    ended = {os.waitpid(-1, 0)[0]}
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
            os.killpg(pid, number)


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
