"""Directories of runs that are being created or removed. Killed programs leave them, and later ones sweep them.

    .headway-new-x7g2/   a run until it is complete, or a run since its removal began
        .removed         the name and the inode of this directory, so that a run that was renamed is not mistaken for it

A directory is swept only if it belongs to this user, its lock is free, and it either has this marker or contains
nothing that a run has written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from headway.core.errors import StorageError
from headway.storage.run import layout

PREFIX = ".headway-new-"
_REMOVED = ".removed"
_YOUNG_S = 60  # more than any program needs to create a run's directory
_SKELETON = (layout.DESCRIPTION, f"{layout.DESCRIPTION}.new", layout.LOCK)
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def sweep(fresh: Path) -> None:
    """Remove directories that killed programs have left next to ``fresh``.

    A directory about as new as ``fresh`` stays: its program may not have locked it yet.
    """
    now = fresh.stat().st_mtime  # by the file server's clock
    for path in fresh.parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, StorageError), _opened(path) as folder:
            status = os.fstat(folder)
            if status.st_uid == os.geteuid() and now - status.st_mtime > _YOUNG_S:
                _sweep(path, folder)


def _sweep(path: Path, folder: int) -> None:
    if layout.LOCK not in os.listdir(folder):
        os.rmdir(path)  # only if it is empty
        return
    lock = os.open(layout.LOCK, os.O_RDONLY | _OPEN, dir_fd=folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_marked(path, folder) or _is_skeleton(folder):
            _remove(path, folder, ignore_errors=True)
    finally:
        os.close(lock)


def remove(path: Path, doomed: Path) -> None:
    """Remove a run's directory, whose lock is held. It is renamed first, so that an interruption is noticed.

    Args:
        path: The directory.
        doomed: Its new path, an unused one in the same directory.
    """
    with _opened(path) as folder:
        _mark(doomed.name, folder)
        try:
            path.rename(doomed)
        except BaseException:
            os.unlink(_REMOVED, dir_fd=folder)
            raise
        _remove(doomed, folder, ignore_errors=False)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def _marker(name: str, folder: int) -> bytes:
    return f"{os.fstat(folder).st_ino} {name}".encode()


def _mark(name: str, folder: int) -> None:
    fd = os.open(_REMOVED, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _OPEN, 0o600, dir_fd=folder)
    with open(fd, "wb") as file:
        file.write(_marker(name, folder))


def _is_marked(path: Path, folder: int) -> bool:
    try:
        fd = os.open(_REMOVED, os.O_RDONLY | _OPEN, dir_fd=folder)
    except FileNotFoundError:
        return False
    with open(fd, "rb") as file:
        status, expected = os.fstat(fd), _marker(path.name, folder)
        own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        return own and file.read(len(expected) + 1) == expected


def _is_skeleton(folder: int) -> bool:
    """Whether a directory contains no more than a program has written when it creates a run."""
    others = set(os.listdir(folder)) - {*_SKELETON}
    return others <= {layout.LOGS, layout.CHECKPOINTS} and all(_is_empty(name, folder) for name in others)


def _is_empty(name: str, folder: int) -> bool:
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        return not os.listdir(inner)
    finally:
        os.close(inner)


def _remove(path: Path, folder: int, *, ignore_errors: bool) -> None:
    """Remove an open directory without following links. Marker and lock go last: the rest can be swept later."""
    last = (_REMOVED, layout.LOCK)
    for name in os.listdir(folder):
        if name not in last:
            _remove_entry(name, folder, ignore_errors=ignore_errors)
    for name in last:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
    os.rmdir(path)


def _remove_entry(name: str, folder: int, *, ignore_errors: bool) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        shutil.rmtree(name, ignore_errors, dir_fd=folder)
