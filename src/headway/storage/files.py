"""Small honest file operations: copies that never take what is not there, writes that are whole or absent."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.core.errors import StorageError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def copy_tree(source: Path, target: Path, *, leave_out: Path, without: str) -> int:
    """Copy a folder as it is now, and say how many files that were.

    The source is never changed. What vanishes while we copy (somebody else's temporary file) was not ours to keep;
    pipes and sockets have no content to keep; ``leave_out`` is a folder that is not copied even if it lies inside,
    ``without`` a file at the top that is ours and not the caller's.
    """
    target.mkdir(parents=True)
    count = 0
    for path, entry in _walk(source, leave_out):
        if path == without:
            continue
        place = target / path
        if entry.is_dir():
            place.mkdir(exist_ok=True)
            continue
        try:
            shutil.copyfile(entry, place)
        except FileNotFoundError:
            place.unlink(missing_ok=True)
        else:
            count += 1
    return count


def _walk(source: Path, leave_out: Path) -> Iterator[tuple[str, Path]]:
    """Folders before what is in them; links are followed, as every reader would, but never in a circle."""
    pending: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    avoid = _identity(leave_out)
    while pending:
        folder, above = pending.pop()
        within = above | {_identity(source / folder)}
        for name in sorted(os.listdir(source / folder)):
            path = os.path.join(folder, name)
            entry = source / path
            try:
                mode = entry.stat().st_mode
            except FileNotFoundError:
                continue
            if stat.S_ISREG(mode):
                yield path, entry
            elif stat.S_ISDIR(mode) and _identity(entry) not in within | {avoid}:
                pending.append((path, within))
                yield path, entry


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def exchange(a: Path, b: Path) -> None:
    """Swap two folders, in one step where the kernel and the filesystem can."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None or renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) != 0:
        aside = b.with_name(f"{b.name}.aside")
        os.rename(b, aside)
        os.rename(a, b)
        os.rename(aside, a)


def sizes(folder: Path) -> dict[str, int]:
    """Every file below, by its path relative to ``folder``, with its size."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            found[os.path.relpath(path, folder)] = os.path.getsize(path)
    return dict(sorted(found.items()))


def same_content(a: Path, b: Path) -> bool:
    if a.stat().st_size != b.stat().st_size:
        return False
    with a.open("rb") as left, b.open("rb") as right:
        while chunk := left.read(1 << 20):
            if chunk != right.read(1 << 20):
                return False
    return True


def write_json(path: Path, value: object) -> None:
    """Whole or not at all, whatever happens in between."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise StorageError(f"{path} is damaged: {error}") from error


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a file that somebody may be appending to; a torn last line is not there yet."""
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield json.loads(line)
    except FileNotFoundError:
        return


def read_lines_backwards(path: Path) -> Iterator[dict[str, Any]]:
    """The same lines, the last one first, without reading more of the file than is asked for."""
    try:
        with path.open("rb") as file:
            position = file.seek(0, os.SEEK_END)
            beginning = b""  # of a line whose end we have seen; at first, the torn one
            torn = True
            while position > 0:
                size = min(position, 1 << 16)
                position -= size
                file.seek(position)
                first, *whole = (file.read(size) + beginning).split(b"\n")
                if whole and torn:
                    whole, torn = whole[:-1], False
                yield from map(json.loads, reversed(whole))
                beginning = first
            if beginning and not torn:
                yield json.loads(beginning)
    except FileNotFoundError:
        return


class Appender:
    """A file of lines that only we append to. A torn line left by a crash is cut off first."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        _cut_torn_line(self._fd)

    def write(self, lines: bytes) -> None:
        view = memoryview(lines)
        while view:
            view = view[os.write(self._fd, view) :]

    def close(self) -> None:
        os.close(self._fd)


def _cut_torn_line(fd: int) -> None:
    end = os.lseek(fd, 0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 4096)
        block = os.pread(fd, end - start, start)
        newline = block.rfind(b"\n")
        if newline >= 0:
            os.ftruncate(fd, start + newline + 1)
            return
        end = start
    os.ftruncate(fd, 0)
