"""Small honest file operations: lists of what is there, writes that are whole or absent, lines that are never torn."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.core.errors import StorageError
from headway.storage import disk


def walk(source: Path, leave_out: Path) -> Iterator[tuple[str, Path]]:
    """Files and folders below, by their relative path; folders before what is in them.

    Links are followed, as every reader would, but never in a circle. Pipes and sockets have no content to keep;
    ``leave_out`` is a folder that is not entered even if it lies inside.
    """
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
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_dev, status.st_ino


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
    """Whole or not at all, whatever happens in between, and on the disk when this returns."""
    temporary = path.with_name(path.name + ".new")
    disk.write(temporary, json_bytes(value))
    disk.flush(temporary)
    disk.move(temporary, path)
    disk.flush(path.parent)


def json_bytes(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def read_json(path: Path) -> Any:
    return parse_json(path, path.read_bytes())


def parse_json(path: str | Path, data: bytes) -> Any:
    try:
        return json.loads(data)
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
    """A file of lines that only we append to. A torn line left by a crash is cut off first.

    Lines that cannot be written now (a full disk) are kept and written with the next ones: the run must not die of it.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        _cut_torn_line(self._fd)
        self._kept = b""
        self.trouble: OSError | None = None  # why there are such lines

    def write(self, lines: bytes) -> None:
        view = memoryview(self._kept + lines if self._kept else lines)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self._kept, self.trouble = bytes(view), error
        else:
            self._kept, self.trouble = b"", None

    def close(self) -> None:
        if self._kept:
            self.write(b"")
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
