"""Temporary directories that know who made them.

A program that is killed cannot remove its temporary directories, so the next one does. What it may remove is proven,
not guessed from a name: the directory holds a marker of ours, belongs to the user who sweeps, is not locked, and the
process that the marker names is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

from headway.core.environment import memory_folder
from headway.core.owner import Owner

PREFIX = "headway-"
MARKER = ".headway-owner.json"
_MARKER_BYTES = 4096


class OwnedDirectory:
    """A temporary directory of this process. It is removed by :meth:`remove`, else by a later program's :func:`sweep`.

    Args:
        purpose: A word for its name, for the person who lists the directory above it.
        base: The directory to make it in; None is the system's place for temporary files.
    """

    def __init__(self, purpose: str, base: str | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-", dir=base))
        self._pid = os.getpid()
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a filesystem without locks
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        (self.path / MARKER).write_text(json.dumps(Owner.current().to_json()))  # last: from now on it may be swept

    def remove(self) -> None:
        """Remove it with all that is in it; not in a process that was forked from the one that made it."""
        if self._lock >= 0 and self._pid == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def sweep() -> None:
    """Remove what processes of this user left behind when they were killed."""
    for base in _bases():
        for path in base.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                _sweep(path)


def _bases() -> list[Path]:
    memory = memory_folder()
    return [Path(base) for base in dict.fromkeys((tempfile.gettempdir(), memory, "/dev/shm")) if base is not None]


def _sweep(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_uid == os.geteuid() and _is_abandoned(fd):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(fd)


def _is_abandoned(directory: int) -> bool:
    owner = _read_marker(directory)
    return owner is not None and owner.uid == os.geteuid() and not owner.is_alive


def _read_marker(directory: int) -> Owner | None:
    """Who made this directory; None where that is not proven. Never blocks, whatever lies there."""
    fd = os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return None
        return Owner.from_json(json.loads(os.read(fd, _MARKER_BYTES)))
    except (ValueError, RecursionError):
        return None
    finally:
        os.close(fd)
