"""The lock of a run's directory: only the driver that holds it may write to the run."""

from __future__ import annotations

import fcntl
import os
import socket
import time
import weakref
from pathlib import Path
from typing import TextIO

from headway.core.errors import StorageError
from headway.storage.checkpoint import staging
from headway.storage.fs_ops import open_regular
from headway.storage.object_store.lease import LeaseLost
from headway.storage.run import layout

_OWNER_LENGTH = 120  # characters shown of the text in a lock, which another user may have written

_held: weakref.WeakSet[TextIO] = weakref.WeakSet()


def _close_copies() -> None:
    """Close the locks in a forked process, which could outlive this one and would keep its runs locked."""
    for file in list(_held):
        file.close()


os.register_at_fork(after_in_child=_close_copies)


def lock_run(path: Path) -> TextIO:
    """Take the lock of a run's directory. StorageError if another process holds it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        fd = os.open(path / layout.LOCK, flags, 0o644)  # other users may read who holds it
        file = open(fd, "a+", encoding="utf-8", errors="replace")
        if not _locked(file):
            file.seek(0)
            owner = file.read(_OWNER_LENGTH).strip() or "another process"
            file.close()
            raise StorageError(f"run {path} is open in {owner}: wait for it, or choose another name")
        if _is_in_place(path, file):
            break
        file.close()  # the run and its lock were removed in the meantime
    _held.add(file)
    if os.fstat(file.fileno()).st_nlink > 1:  # the run was copied with hard links: the file names the original's owner
        return file
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file


def _is_in_place(path: Path, lock: TextIO) -> bool:
    """Whether this lock belongs to the directory that is now at this path, not to one that was moved or removed."""
    try:
        return os.path.samestat(os.stat(path / layout.LOCK), os.fstat(lock.fileno()))
    except FileNotFoundError:
        return False


def check_in_place(path: Path, lock: TextIO) -> None:
    """Raise LeaseLost if another run's directory has replaced this one."""
    if os.path.lexists(path / layout.LOCK) and not _is_in_place(path, lock):
        raise LeaseLost(staging.replaced(path))


def _locked(file: TextIO) -> bool:
    """Try to take the lock a few times, because :func:`is_open` of a reader holds it for microseconds."""
    for _ in range(20):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.005)
        else:
            return True
    return False


def is_open(path: Path) -> bool:
    """Whether a controller holds this run now. Needs no write permission."""
    try:
        with open_regular(path / layout.LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock file, or no locks on this filesystem
        return False
    return False
