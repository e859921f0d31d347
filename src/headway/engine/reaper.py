"""The reapers: ancestors of a nursery. Whatever happens to driver and nursery, nothing of theirs lives on.

    driver ── reaper ── reaper ── nursery ── workers ── what they have started

A reaper waits for the end of the nursery and of the driver, does nothing else and loads nothing. The nursery ends all
its workers when the driver is gone; if the nursery is killed too, its descendants become children of the nearest reaper
(a child subreaper, prctl(2)), which ends them. There are two, so that killing any one of them, with driver and nursery
or long before, leaves one that does this.
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
from typing import NoReturn

PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 0.5  # for the nursery to end by itself after the driver; it may be importing or stopped
_BEGAN = time.time()
_CLOCK_S = 0.1  # clocks of filesystems are coarse
prctl = ctypes.CDLL(None, use_errno=True).prctl


def fork_under_reapers(driver: int, folder: str) -> None:
    """Fork: the child returns and is to be the nursery, this process and another stay behind as its reapers.

    Args:
        driver: A pidfd of the driver.
        folder: Temporary files of the nursery and its workers, which go with them.
    """
    # Whatever the driver has blocked. SIGTERM is for it and for workers, who hear of it as soon as they can; what
    # sends it to all processes of a program, as systemd and Slurm do, must not take the workers away by ending us.
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGTERM])
    for grace_s in (2 * _GRACE_S, _GRACE_S):  # the inner reaper goes first
        adopt_orphans()
        child = os.fork()
        if child:
            try:
                _close_all_but(driver)
                _guard(child, driver, folder, grace_s)
            finally:
                os._exit(70)


def adopt_orphans() -> None:
    """Have the kernel make descendants whose parents end children of this process."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """Kill all children and, as their parents end, all descendants; return when the last is gone."""
    with contextlib.suppress(ChildProcessError, OSError):
        while True:
            for pid in children(os.getpid()):
                send_signal(pid, signal.SIGKILL)
            sweep_shared_memory(os.waitpid(-1, 0)[0])


def children(pid: int) -> list[int]:
    """The children of a process with one thread."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def send_signal(pid: int, number: int) -> None:
    """SIGKILL reaches everything the worker started; anything else, its own process alone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    if number == signal.SIGKILL:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)


def sweep_shared_memory(pid: int) -> None:
    """torch makes a segment, passes it on and unlinks its name; a loader process that is killed in between cannot.

    Containers may share ``/dev/shm`` and not their process numbers. What another user has made, or somebody before
    this process began, is not that of a child of ours.
    """
    for path in glob.glob(f"/dev/shm/torch_{pid}_*"):
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            if status.st_uid == os.geteuid() and status.st_ctime >= _BEGAN - _CLOCK_S:
                os.unlink(path)


def _guard(child: int, driver: int, folder: str, grace_s: float) -> NoReturn:
    guarded: int | None = child
    while guarded is not None:
        ended = os.pidfd_open(guarded)
        if driver in _first_of(ended, driver):
            _first_of(ended, timeout_s=grace_s)
            break
        os.waitpid(guarded, 0)
        guarded = _adopted_nursery()
        os.close(ended)
    end_children()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _adopted_nursery() -> int | None:
    """The nursery, if a reaper between us and it was killed: it is our child now. None where nothing is to be guarded.

    The inner reaper leaves no child behind unless it is killed. What the nursery leaves is not a nursery.
    """
    left = children(os.getpid())
    return left[0] if len(left) == 1 and _is_nursery(left[0]) else None


def _is_nursery(pid: int) -> bool:
    """Whether a process was forked from this one without another program or session since; workers have their own."""
    with contextlib.suppress(OSError):
        return os.getsid(pid) == os.getsid(0)
    return False


def _first_of(*pidfds: int, timeout_s: float | None = None) -> list[int]:
    poll = select.poll()
    for fd in pidfds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)]


def _close_all_but(kept: int) -> None:
    """The nursery's door among them: it is closed for the driver when the nursery is gone."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != kept:
            with contextlib.suppress(OSError):  # it was that of the listing
                os.close(fd)
