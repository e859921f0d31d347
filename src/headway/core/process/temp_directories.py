"""Temporary directories with a marker that identifies the process that created them.

A killed program cannot remove its temporary directories, so the next program does. It removes a directory only if the
directory has a marker, belongs to the same user and is not locked, and the process named in the marker has ended. The
marker also contains the name of the directory, so copies and renamed directories are kept.
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
from typing import Any

from headway.core.environment import memory_folder
from headway.core.process.identity import Owner

PREFIX = "headway-"
MARKER = ".headway-owner.json"
_MARKER_BYTES = 4096


class OwnedDirectory:
    """A temporary directory of this process, removed by :meth:`remove` or by :func:`sweep` of a later program.

    Args:
        purpose: A word for the directory's name, which tells users what it is for.
        base: The parent directory; None is the system's directory for temporary files.
    """

    def __init__(self, purpose: str, base: str | None = None) -> None:
        self._pid = os.getpid()
        self._lock = -1
        try:
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-", dir=base))
            self._claim()
        except OSError as error:
            where = base or tempfile.gettempdir()
            self._discard()
            hint = "HEADWAY_MEMORY_DIR" if base is not None and base == memory_folder() else "TMPDIR"
            raise OSError(
                error.errno,
                f"no temporary directory could be made in {where} ({error.strerror}): free space there, or set {hint}",
            ) from error

    def _claim(self) -> None:
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a filesystem without locks
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        place = {"directory": self.path.name, "inode": os.fstat(self._lock).st_ino}
        marker = json.dumps({**Owner.current().to_json(), **place})
        (self.path / MARKER).write_text(marker)  # last: from now on, sweep() may remove it

    def _discard(self) -> None:
        if hasattr(self, "path"):
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove(self) -> None:
        """Remove the directory, except in a process forked from the one that created it."""
        if self._lock >= 0 and self._pid == os.getpid():
            self._discard()


def sweep() -> None:
    """Remove the directories of killed processes of this user."""
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
        if os.fstat(fd).st_uid == os.geteuid() and _is_abandoned(fd, path.name):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _empty(fd)
            os.rmdir(path)
    finally:
        os.close(fd)


def _empty(directory: int) -> None:
    """Remove the content of an open directory, whatever has its name by now. The marker goes last."""
    for name in sorted(os.listdir(directory), key=MARKER.__eq__):
        with contextlib.suppress(OSError):
            try:
                os.unlink(name, dir_fd=directory)
            except IsADirectoryError:
                shutil.rmtree(name, ignore_errors=True, dir_fd=directory)


def _is_abandoned(directory: int, name: str) -> bool:
    marker = _read_marker(directory)
    if marker is None or (marker.pop("directory", ""), marker.pop("inode", 0)) != (name, os.fstat(directory).st_ino):
        return False  # copied, or renamed by a user
    owner = Owner.from_json(marker)
    return owner is not None and owner.uid == os.geteuid() and not owner.is_alive


def _read_marker(directory: int) -> dict[str, Any] | None:
    """Return the marker of a directory, or None if it is not valid. Never blocks, whatever type of file it is."""
    fd = os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return None
        content = json.loads(os.read(fd, _MARKER_BYTES))
        return content if isinstance(content, dict) else None
    except (ValueError, RecursionError):
        return None
    finally:
        os.close(fd)
