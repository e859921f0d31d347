"""The reaper: the parent of a nursery. Whatever happens to driver and nursery, nothing of theirs lives on.

    driver ── reaper ── nursery ── workers ── what they have started

It waits for the end of the nursery and of the driver, does nothing else and loads nothing. The nursery ends all its
workers when the driver is gone; if the nursery is killed too, its descendants become children of the reaper (a child
subreaper, prctl(2)), which ends them. Both would have to be killed at the same moment, with the driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import select
import shutil
import signal
from typing import NoReturn

PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 0.5  # for the nursery to end by itself after the driver; it may be importing or stopped
prctl = ctypes.CDLL(None, use_errno=True).prctl


def fork_under_reaper(driver: int, folder: str) -> None:
    """Fork: the child returns and is to be the nursery, this process stays behind as its reaper.

    Args:
        driver: A pidfd of the driver.
        folder: Temporary files of the nursery and its workers, which go with them.
    """
    adopt_orphans()
    # Whatever the driver has blocked. SIGTERM is for it and for workers, who hear of it as soon as they can; what
    # sends it to all processes of a program, as systemd and Slurm do, must not take the workers away by ending us.
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGTERM])
    nursery = os.fork()
    if nursery:
        try:
            _close_all_but(driver)
            _guard(nursery, driver, folder)
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
    """torch makes a segment, passes it on and unlinks its name; a loader process that is killed in between cannot."""
    for path in glob.glob(f"/dev/shm/torch_{pid}_*"):
        with contextlib.suppress(OSError):
            os.unlink(path)


def _guard(nursery: int, driver: int, folder: str) -> NoReturn:
    ended = os.pidfd_open(nursery)
    if driver in _first_of(ended, driver):
        _first_of(ended, timeout_s=_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.kill(nursery, signal.SIGKILL)
    end_children()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


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
