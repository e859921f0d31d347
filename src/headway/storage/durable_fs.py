"""Durable steps on a filesystem: write, flush, rename, exchange, lock.

Every write that must survive a crash in the right order goes through this module, so that a test can record the steps
and replay each prefix of them.
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
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: a pipe in place of a file must not block


def make_directory(path: Path) -> None:
    """Create a directory and its parents if they do not exist. New ones are accessible to their owner only."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def make_private(path: Path) -> None:
    """Remove the permissions of group and others from a file or directory. No effect without permissions support."""
    with contextlib.suppress(OSError):
        if (mode := stat.S_IMODE(os.stat(path).st_mode)) & 0o077:
            os.chmod(path, mode & 0o700)


def write(path: Path, data: bytes) -> None:
    """Create or overwrite a file, without flushing it. A symbolic link at this path is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:  # the error of a full disk contains no path
        raise OSError(error.errno, error.strerror, str(path)) from error


def copy(source: Path, target: Path) -> None:
    """Copy a file's content and permissions, as a reflink if the filesystem supports it, or inside the kernel."""
    with open(os.open(source, _READ), "rb") as reading, target.open("wb") as writing:
        os.fchmod(writing.fileno(), _permissions(reading.fileno()))
        _copy_all(reading.fileno(), writing.fileno())


def copy_for_user(source: Path, target: Path) -> None:
    """Copy a file like :func:`copy`, but limit the permissions of a new file by the umask."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with (
        open(os.open(source, _READ), "rb") as reading,
        open(os.open(target, flags, _permissions(reading.fileno())), "wb") as writing,
    ):
        _copy_all(reading.fileno(), writing.fileno())


def _permissions(fd: int) -> int:
    """The permissions for a copy of a file: never set-uid, set-gid or sticky, and writable by its owner."""
    return os.fstat(fd).st_mode & 0o777 | 0o600


def _copy_all(source: int, target: int) -> None:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        _copy_content(source, target)


def _copy_content(source: int, target: int) -> None:
    """Copy the bytes and keep holes, so that a sparse file does not grow on disk."""
    size, position = os.fstat(source).st_size, 0
    while position < size:
        position, end = _next_data(source, position, size)
        while position < end and (count := _copy_range(source, target, position, end - position)):
            position += count
        if position < end:
            break  # the source was truncated in the meantime
    os.ftruncate(target, position)


def _next_data(fd: int, position: int, size: int) -> tuple[int, int]:
    """The next range of a file that holds data: its start and end."""
    try:
        start = os.lseek(fd, position, os.SEEK_DATA)
        return start, min(size, os.lseek(fd, start, os.SEEK_HOLE))
    except OSError as error:
        return (size, size) if error.errno == errno.ENXIO else (position, size)  # ENXIO: only a hole; or unsupported


def _copy_range(source: int, target: int, position: int, count: int) -> int:
    try:
        return os.copy_file_range(source, target, min(count, 1 << 30), position, position)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM):
            raise
    data = os.pread(source, min(count, 1 << 20), position)
    return os.pwrite(target, data, position) if data else 0


def move(source: Path, target: Path) -> None:
    """Rename a file or directory atomically, on the same filesystem."""
    os.rename(source, target)


def link(source: Path, target: Path) -> None:
    """Create a hard link to a file that never changes."""
    os.link(source, target)


def exchange(a: Path, b: Path) -> None:
    """Swap two directories, atomically if the kernel and the filesystem support it."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None or renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) != 0:
        aside = a.with_name(f"{a.name}.aside")
        move(b, aside)
        move(a, b)
        move(aside, a)


def is_open_for_writing(path: Path) -> bool:
    """Whether a process has this file open for writing, or mapped; False if the filesystem has no leases.

    The kernel refuses a read lease on such a file.
    """
    fd = os.open(path, _READ)
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # sent if a process opens it now; ignored by default
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    finally:
        os.close(fd)
    return False


def flush(path: Path) -> None:
    """Flush a file's content, or a directory's entries, to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: Path) -> None:
    """Remove a file, or a directory with its content. Errors are ignored."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def shared(folder: Path) -> Iterator[None]:
    """Hold a directory's shared lock while it is read. FileNotFoundError if it was removed."""
    fd = _open_shared(folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # a process forked in the meantime may hold a copy of the descriptor
        os.close(fd)


def _open_shared(folder: Path) -> int:
    """Open and lock a directory; try again if a different one replaced it before the lock was taken."""
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
    """Whether a process holds the lock of this directory or file now."""
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
