"""What we do to a filesystem, one small step at a time.

Everything that must survive a crash in the right order goes through here and nowhere else, so that a test can record
the steps and replay every beginning of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from headway.core.owner import boot_id as boot_id

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_FICLONE = 0x40049409


def make_folder(path: Path) -> None:
    """With all folders above it; it may be there already."""
    path.mkdir(parents=True, exist_ok=True)


def write(path: Path, data: bytes) -> None:
    """A new file, or a new content; not flushed. A link in its place is not followed: it may lead anywhere."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)


def copy(source: Path, target: Path) -> None:
    """A file's content and permissions: shared blocks where the filesystem can, else copied inside the kernel."""
    with source.open("rb") as reading, target.open("wb") as writing:
        os.fchmod(writing.fileno(), os.fstat(reading.fileno()).st_mode & 0o777 | 0o600)
        try:
            fcntl.ioctl(writing.fileno(), _FICLONE, reading.fileno())
        except OSError:
            _copy_content(reading.fileno(), writing.fileno())


def _copy_content(source: int, target: int) -> None:
    try:
        while os.copy_file_range(source, target, 1 << 30):
            pass
    except OSError:  # another filesystem, or one that cannot: what was copied so far stays, we go on behind it
        while chunk := os.read(source, 1 << 20):
            view = memoryview(chunk)
            while view:
                view = view[os.write(target, view) :]


def move(source: Path, target: Path) -> None:
    """Give a file or folder another name on the same filesystem, in one step."""
    os.rename(source, target)


def link(source: Path, target: Path) -> None:
    """A second name for a file that will never change."""
    os.link(source, target)


def exchange(a: Path, b: Path) -> None:
    """Swap two folders, in one step where the kernel and the filesystem can."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None or renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) != 0:
        aside = a.with_name(f"{a.name}.aside")
        move(b, aside)
        move(a, b)
        move(aside, a)


def flush(path: Path) -> None:
    """A file's content, or a folder's list of names, on the disk itself before we go on."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: Path) -> None:
    """A file, or a folder with all that is in it; what cannot be removed is of no use and stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def shared(folder: Path) -> Iterator[None]:
    """We read this folder: nobody may take it away meanwhile."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a filesystem without locks
            fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


def is_read(path: Path) -> bool:
    """Whether somebody reads this folder right now, or holds this file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a filesystem without locks
        return False
    finally:
        os.close(fd)
    return False
