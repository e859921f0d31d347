"""JSON lines: files that one process appends to, and that others read while they grow.

    JsonLines(path, parse).lines()        all lines, the oldest first
    JsonLines(path, parse).backwards()    the newest first, without reading the rest
    JsonLines(path, parse).tail(offset)   the lines added after a byte offset, as the file grows

Damaged lines (a lost page after a power cut, another program) are skipped. A last line without a newline is still being
written and is read when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from headway.core.schema.shape import MAX_DEPTH, check_depth, conform
from headway.storage.fs_ops import MAX_JSON_BYTES, after_hole, open_regular, open_to_append

T = TypeVar("T")

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class DamagedLine:
    """A line that cannot be parsed."""

    why: str


def json_object(line: Any) -> dict[str, Any]:
    """A line that may be any JSON object."""
    conform(line, dict)
    found: dict[str, Any] = line
    return found


class JsonLines(Generic[T]):
    """A file of JSON lines.

    Args:
        path: The file; it need not exist.
        parse: Converts the JSON value of a line; raises ValueError for one that does not belong in this file.
    """

    def __init__(self, path: Path, parse: Callable[[Any], T]) -> None:
        self.path = path
        self._parse = parse

    def lines(self) -> Iterator[T]:
        """The values of all undamaged lines."""
        return (line for line in self.scan() if not isinstance(line, DamagedLine))

    def scan(self) -> Iterator[T | DamagedLine]:
        """All lines, including damaged ones."""
        return self.tail().scan()

    def tail(self, offset: int = 0) -> JsonTail[T]:
        """A reader that starts at a byte offset, which must be the start of a line."""
        return JsonTail(self.path, self._parse, offset)

    def backwards(self) -> Iterator[T]:
        """The values of the undamaged lines, last first. Reads only as much of the file as the caller consumes."""
        for data in _lines_backwards(self.path):
            line = _parsed(data, self._parse)
            if not isinstance(line, DamagedLine):
                yield line

    def damage(self) -> str:
        """A sentence about damaged lines; empty if there are none."""
        count = sum(isinstance(line, DamagedLine) for line in self.scan())
        return f"{self.path.name}: {count:,} damaged line{'s' if count > 1 else ''} ignored" if count else ""


class JsonTail(Generic[T]):
    """Reads a growing file of JSON lines. ``offset`` is the start of the first unread line."""

    def __init__(self, path: Path, parse: Callable[[Any], T], offset: int = 0) -> None:
        self._path = path
        self._parse = parse
        self.offset = offset

    def lines(self) -> Iterator[T]:
        """The values of the undamaged lines completed since the last call."""
        return (line for line in self.scan() if not isinstance(line, DamagedLine))

    def scan(self) -> Iterator[T | DamagedLine]:
        """All lines completed since the last call, including damaged ones."""
        with contextlib.suppress(FileNotFoundError), open_regular(self._path) as file:
            for line, end in _whole_lines(file.fileno(), self.offset):
                self.offset = end
                if line is not None:
                    yield line if isinstance(line, DamagedLine) else _parsed(line, self._parse)

    @property
    def has_grown(self) -> bool:
        """Whether the file is longer than the offset."""
        try:
            return self._path.stat().st_size > self.offset
        except FileNotFoundError:
            return False


def _whole_lines(fd: int, begin: int) -> Iterator[tuple[bytes | DamagedLine | None, int]]:
    """Complete lines, each with the offset of its end.

    A line that cannot be JSON (too long, or with zero bytes) yields DamagedLine at once and None at its end. Its bytes
    are not kept and holes are not read, so that a sparse file of terabytes costs nothing.
    """
    parts: list[bytes] = []  # the current line so far
    skipping = False
    os.lseek(fd, begin, os.SEEK_SET)
    while chunk := os.read(fd, _CHUNK_BYTES):
        position = os.lseek(fd, 0, os.SEEK_CUR) - len(chunk)
        *ends, beginning = chunk.split(b"\n")
        for end in ends:
            position += len(end) + 1
            begin = position
            yield (None if skipping else _line([*parts, end])), begin
            parts, skipping = [], False
        if skipping:
            os.lseek(fd, after_hole(fd, os.lseek(fd, 0, os.SEEK_CUR)), os.SEEK_SET)
            continue
        parts.append(beginning)
        if (damaged := _damage_of(parts)) is not None:
            yield damaged, begin
            parts, skipping = [], True


def _line(parts: list[bytes]) -> bytes | DamagedLine:
    return _damage_of(parts) or b"".join(parts)


def _damage_of(parts: list[bytes]) -> DamagedLine | None:
    """Why these parts of a line cannot be JSON, or None. Earlier calls have checked all parts but the last."""
    if sum(map(len, parts)) > MAX_JSON_BYTES:
        return DamagedLine(f"it has more than {MAX_JSON_BYTES >> 20} MiB")
    return DamagedLine("it holds zero bytes") if b"\0" in parts[-1] else None


def _parsed(line: bytes, parse: Callable[[Any], T]) -> T | DamagedLine:
    try:
        found = json.loads(line)
        if line.count(b"{") + line.count(b"[") > MAX_DEPTH:  # counting brackets is much cheaper
            check_depth(found)
        return parse(found)
    except (ValueError, RecursionError) as error:
        return DamagedLine(str(error))


def _lines_backwards(path: Path) -> Iterator[bytes]:
    with contextlib.suppress(FileNotFoundError), open_regular(path) as file:
        position = file.seek(0, os.SEEK_END)
        beginning = b""  # start of a line whose end was already read; at first, the torn last line
        torn = True
        skipped = 0  # number of bytes of a line that cannot be JSON
        while position > 0 and len(beginning) + skipped <= MAX_JSON_BYTES:
            size = min(position, max(1 << 16, len(beginning)))  # long lines are read in growing steps
            position -= size
            file.seek(position)
            first, *whole = (file.read(size) + beginning).split(b"\n")
            if whole and (torn or skipped):
                whole, torn, skipped = whole[:-1], False, 0
            yield from reversed(whole)
            if b"\0" in first:
                first, skipped = b"", skipped + len(first)
            beginning = first
        if beginning and not torn and not skipped:
            yield beginning


class Appender:
    """Appends to a file of lines that no other process writes. A torn line left by a crash is truncated first.

    Lines that cannot be written (a full disk) are kept and written with the next ones: the run continues.
    """

    def __init__(self, path: Path) -> None:
        self._fd = open_to_append(path)
        _cut_torn_line(self._fd)
        self._kept = b""
        self.trouble: OSError | None = None  # why lines are being kept

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
    size = end = os.lseek(fd, 0, os.SEEK_END)
    while end > 0:
        if size - end > MAX_JSON_BYTES:  # possibly terabytes of a sparse file; readers skip this line
            os.write(fd, b"\n")
            return
        start = max(0, end - _CHUNK_BYTES)
        block = os.pread(fd, end - start, start)
        newline = block.rfind(b"\n")
        if newline >= 0:
            os.ftruncate(fd, start + newline + 1)
            return
        end = start
    os.ftruncate(fd, 0)
