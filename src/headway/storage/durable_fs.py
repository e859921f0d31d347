"""Durable steps on a filesystem: write, flush, rename, exchange, lock.

Everything that must survive a crash in the right order goes through here and nowhere else, so that a test can record
the steps and replay every beginning of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

from headway.core.process.identity import boot_id as boot_id

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_FICLONE = 0x40049409
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe that has taken a file's place does not block


def make_directory(path: Path) -> None:
    """With all folders above it; it may be there already. Only its owner may enter those that are new."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def make_private(path: Path) -> None:
    """Take away what others may do with a file or folder, as far as the filesystem knows of permissions."""
    with contextlib.suppress(OSError):
        if (mode := stat.S_IMODE(os.stat(path).st_mode)) & 0o077:
            os.chmod(path, mode & 0o700)


def write(path: Path, data: bytes) -> None:
    """A new file, or a new content; not flushed. A link in its place is not followed: it may lead anywhere."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:  # a full disk names no file
        raise OSError(error.errno, error.strerror, str(path)) from error


def copy(source: Path, target: Path) -> None:
    """A file's content and permissions: shared blocks where the filesystem can, else copied inside the kernel."""
    with open(os.open(source, _READ), "rb") as reading, target.open("wb") as writing:
        os.fchmod(writing.fileno(), os.fstat(reading.fileno()).st_mode & 0o777 | 0o600)
        try:
            fcntl.ioctl(writing.fileno(), _FICLONE, reading.fileno())
        except OSError:
            _copy_content(reading.fileno(), writing.fileno())


def _copy_content(source: int, target: int) -> None:
    """Holes stay holes: a sparse file takes no more room than it did."""
    size, position = os.fstat(source).st_size, 0
    while position < size:
        position, end = _next_data(source, position, size)
        while position < end and (count := _copy_range(source, target, position, end - position)):
            position += count
        if position < end:
            break  # it was cut off meanwhile
    os.ftruncate(target, position)


def _next_data(fd: int, position: int, size: int) -> tuple[int, int]:
    """Where the next bytes of a file are that it has stored."""
    try:
        start = os.lseek(fd, position, os.SEEK_DATA)
        return start, min(size, os.lseek(fd, start, os.SEEK_HOLE))
    except OSError as error:
        return (size, size) if error.errno == errno.ENXIO else (position, size)  # only a hole; or no such question


def _copy_range(source: int, target: int, position: int, count: int) -> int:
    try:
        return os.copy_file_range(source, target, min(count, 1 << 30), position, position)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM):
            raise
    data = os.pread(source, min(count, 1 << 20), position)
    return os.pwrite(target, data, position) if data else 0


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


def is_open_for_writing(path: Path) -> bool:
    """Whether some process has this file open to write, or mapped; False where the filesystem cannot tell.

    The kernel knows: it gives nobody a lease to read such a file.
    """
    fd = os.open(path, _READ)
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # should somebody open it in this moment: ignored by default
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    finally:
        os.close(fd)
    return False


def flush(path: Path) -> None:
    """Flush a file's content, or a directory's list of names, to the disk itself."""
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
    """We read this folder: nobody may take it away meanwhile. FileNotFoundError where somebody has."""
    fd = _open_shared(folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # a process that was forked meanwhile has a copy of it
        os.close(fd)


def _open_shared(folder: Path) -> int:
    """The lock of the folder that has this name now: another may have taken its place before we had the lock."""
    while True:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # a filesystem without locks
                fcntl.flock(fd, fcntl.LOCK_SH)
            if os.path.samestat(os.stat(folder), os.fstat(fd)):
                return fd
        except BaseException:
            os.close(fd)
            raise
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
