"""File operations: listings, copies without links, JSON files that are written atomically."""

from __future__ import annotations

import errno
import functools
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from headway.core.errors import StorageError
from headway.storage import durable_fs

MAX_JSON_BYTES = 1 << 28  # limit for one value; Headway writes no larger ones
MAX_PATHS = 1000  # by which links may lead to the same directory
PRIVATE = 0o600  # run directories contain the output of their owner's programs

_HALF_REPLACED = ".headway-link-4f1c9a7be203"  # no user's file has this name
# Errors of the machine, not of the file: the same operation may succeed later.
TEMPORARY_ERRORS = frozenset(
    getattr(errno, name)
    for name in "ENOSPC EDQUOT EFBIG EIO EACCES EROFS EMFILE ENFILE ENOMEM ESTALE ETIMEDOUT".split()
)

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}


class Unreadable(StorageError):
    """A file that exists and cannot be read now, for example because of its permissions."""


def _unreadable(path: str | Path, error: OSError) -> StorageError:
    if error.errno not in TEMPORARY_ERRORS:
        return StorageError(f"{path} cannot be read: {error.strerror}")
    return Unreadable(f"{path} cannot be read: {error.strerror}: {remedy(error)}")


def remedy(error: OSError) -> str:
    """What the user can do about an error of the machine."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "free space and try again"
        case errno.EFBIG:
            return "raise the limit on file sizes (ulimit -f) and try again"
        case errno.EMFILE | errno.ENFILE:
            return "close files or raise the limit on open files (ulimit -n), and try again"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "fix its permissions and try again"
        case _:
            return "check the disk and try again"


def walk(source: Path, leave_out: Path) -> Iterator[tuple[str, Path]]:
    """List the files and directories below a directory by relative path; each directory comes before its content.

    Links are followed, as a reader would, but not in cycles. Pipes and sockets are skipped.

    Args:
        source: The directory.
        leave_out: A directory that is not entered even if it is inside.

    Raises:
        StorageError: Too many links lead to the same directory: their paths can be more than a program ever lists.
    """
    visits: Counter[tuple[int, int]] = Counter()
    pending: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    avoid = _identity(leave_out)
    while pending:
        folder, above = pending.pop()
        place = _identity(source / folder)
        within = above | {place}
        visits[place] += 1
        if visits[place] > MAX_PATHS:
            raise StorageError(f"{source / folder} is reached by more than {MAX_PATHS:,} paths: remove links to it")
        for name in sorted(os.listdir(source / folder)):
            path = os.path.join(folder, name)
            entry = source / path
            try:
                mode = entry.stat().st_mode
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                continue  # a link to itself
            if stat.S_ISREG(mode):
                yield path, entry
            elif stat.S_ISDIR(mode) and _identity(entry) not in within | {avoid}:
                pending.append((path, within))
                yield path, entry


def entries(folder: Path) -> list[Path]:
    """The sorted entries of a directory; none if it does not exist. StorageError if it cannot be read."""
    try:
        return sorted(folder.iterdir()) if folder.is_dir() else []
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{folder} cannot be read: {error.strerror}") from error


def copy_tree(source: Path, target: Path, leave_out: Collection[str] = ()) -> None:
    """Copy the files below a directory. Links are followed; pipes, sockets and devices are skipped.

    Permissions are limited by the umask, and set-uid bits are dropped: the files may be another user's.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path, entry in walk(source, leave_out=target):
        if entry.is_dir():
            (target / path).mkdir(exist_ok=True)
        elif path not in leave_out:
            durable_fs.copy_for_user(entry, target / path)


def replace_links(folder: Path) -> None:
    """Replace symbolic links below a directory by their targets, so that a checkpoint depends on no other files.

    Targets inside the directory are hard-linked, others are copied. Dangling links stay.
    """
    for half in folder.rglob(f".*{_HALF_REPLACED}"):  # left by an interrupted call
        place = half.with_name(half.name[1:].removesuffix(_HALF_REPLACED))
        durable_fs.remove(half) if os.path.lexists(place) else durable_fs.move(half, place)
    for root, folders, names in os.walk(folder):
        for path in (Path(root, name) for name in (*folders, *names)):
            if path.is_symlink() and path.exists():
                _replace_link(path, within=folder)


def detach_files(folder: Path, *, leases: bool) -> None:
    """Replace files that other processes can still write to by copies, because a committed checkpoint never changes.

    Args:
        folder: A directory without symbolic links, whose files have just been moved into it.
        leases: Whether its filesystem supports :func:`durable_fs.is_open_for_writing`.
    """
    found = [(path, path.stat()) for path in folder.rglob("*") if path.is_file()]
    names = Counter(status.st_ino for _, status in found)
    for path, status in found:
        if status.st_nlink > names[status.st_ino] or (leases and durable_fs.is_open_for_writing(path)):
            _replace(path, functools.partial(durable_fs.copy, path))


def has_links(folder: Path) -> bool:
    """Whether this path or any path below it is a symbolic link."""
    below = (os.path.join(root, name) for root, folders, names in os.walk(folder) for name in (*folders, *names))
    return os.path.islink(folder) or any(map(os.path.islink, below))


def _replace_link(path: Path, within: Path) -> None:
    target = path.resolve()
    if target.is_dir():
        _replace(path, functools.partial(copy_tree, target))
    elif not target.is_file():
        return  # a pipe, a device
    elif target.is_relative_to(within.resolve()):
        _replace(path, functools.partial(durable_fs.link, target))
    else:
        _replace(path, functools.partial(durable_fs.copy, target))


def _replace(path: Path, make: Callable[[Path], None]) -> None:
    """Replace a link or file by what ``make`` writes; :func:`replace_links` cleans up after an interrupted call."""
    fresh = path.with_name(f".{path.name}{_HALF_REPLACED}")
    durable_fs.remove(fresh)
    make(fresh)
    if fresh.is_dir():
        path.unlink()
    durable_fs.move(fresh, path)


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_dev, status.st_ino


def sizes(folder: Path) -> dict[str, int]:
    """The size of every file below a directory, by relative path. Links, pipes and sockets are skipped."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                found[os.path.relpath(path, folder)] = status.st_size
    return dict(sorted(found.items()))


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file for reading, without blocking on pipes.

    Raises:
        FileNotFoundError: The path does not exist.
        StorageError: The path is not a readable regular file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unreadable(path, error) from error
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind != stat.S_IFREG:
        os.close(fd)
        raise StorageError(f"{path} is {_KINDS.get(kind, 'a special file')}, not a file")
    return open(fd, "rb")


def open_to_append(path: Path) -> int:
    """Open a file for appending; create it if it does not exist. Links are not followed.

    Raises:
        StorageError: The path is a link or not a regular file, or is not writable.
        OSError: The file cannot be opened or created.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    if path.is_symlink():
        raise StorageError(f"{path} is a link, and Headway does not write through links: remove it")
    try:
        if _has_other_names(path):  # the run was copied with hard links: the original must not grow
            _replace(path, functools.partial(durable_fs.copy, path))
        fd = os.open(path, flags, PRIVATE)
    except PermissionError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StorageError(f"{path} is not a file: remove it")
    return fd


def _has_other_names(path: Path) -> bool:
    """Whether a file has several hard links, so that a write changes all of them."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 1


def after_hole(fd: int, position: int) -> int:
    """The next position in a file that holds data: this one, or the end of the hole in a sparse file."""
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        return os.lseek(fd, 0, os.SEEK_END) if error.errno == errno.ENXIO else position


def same_content(a: Path, b: Path) -> bool:
    if a.stat().st_size != b.stat().st_size:
        return False
    with open_regular(a) as left, open_regular(b) as right:
        while chunk := left.read(1 << 20):
            if chunk != right.read(1 << 20):
                return False
    return True


def same_beginning(short: Path, long: Path) -> bool:
    """Whether ``long`` begins with the content of ``short``."""
    with open_regular(short) as left, open_regular(long) as right:
        while chunk := left.read(1 << 20):
            if chunk != right.read(len(chunk)):
                return False
    return True


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically, and flush it to the disk before returning."""
    temporary = _temporary(path)
    if os.path.lexists(temporary) and (not stat.S_ISREG(os.lstat(temporary).st_mode) or _has_other_names(temporary)):
        durable_fs.remove(temporary)  # it may be a link that points outside the run
    durable_fs.write(temporary, json_bytes(value))
    durable_fs.flush(temporary)
    durable_fs.move(temporary, path)
    durable_fs.flush(path.parent)


def remove_json(path: Path) -> None:
    """Remove a file of :func:`write_json` and the temporary file of an interrupted call."""
    for stale in (path, _temporary(path)):
        durable_fs.remove(stale)


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def json_bytes(value: object) -> bytes:
    """A value as JSON, as it is written to a file. StorageError if it is too large to be read again."""
    data = json.dumps(value, indent=1).encode() + b"\n"
    if len(data) > MAX_JSON_BYTES:
        raise StorageError(
            f"its description has {len(data) >> 20} MiB, and at most {MAX_JSON_BYTES >> 20} are allowed: report fewer "
            "metrics"
        )
    return data


def read_small(path: Path) -> bytes:
    """The content of a file that holds one JSON value."""
    try:
        with open_regular(path) as file:
            large = os.fstat(file.fileno()).st_size > MAX_JSON_BYTES
            data = b"" if large else file.read(MAX_JSON_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unreadable(path, error) from error
    if large or len(data) > MAX_JSON_BYTES:
        raise StorageError(f"{path} is damaged: it has more than {MAX_JSON_BYTES >> 20} MiB")
    return data


def read_json(path: Path) -> Any:
    return parse_json(path, read_small(path))


def parse_json(path: str | Path, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:  # RecursionError: nested thousands of levels deep
        raise StorageError(f"{path} is damaged: {error}") from error
