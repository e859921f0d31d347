"""Tails of the workers' log files: complete lines as they are written, limited to a readable amount."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.core import phrases
from headway.core.errors import StorageError
from headway.storage.fs_ops import open_regular

# After this line, a worker writes its full traceback to its log. The console itself shows the traceback once, folded.
TRACEBACK_FOLLOWS = "---- headway: the whole traceback ----"

SHOW_BYTES = 1 << 16  # maximum of one stream at a time; the rest is only in the file


@dataclass(frozen=True)
class Line:
    rank: int
    stream: str  # "out" or "err"
    text: str


class Tail:
    """The growing end of one file. ``partial`` is the unfinished last line; of a progress bar, only its last state."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0
        self._rest = b""
        self._muted = False

    @property
    def partial(self) -> str:
        return _text(self._rest)

    def lines(self) -> Iterator[str]:
        """Lines completed since the last call."""
        new = self._read()  # may reset self._rest
        *complete, self._rest = (self._rest + new).split(b"\n")
        if len(self._rest) > SHOW_BYTES:
            self._rest = self._rest[-SHOW_BYTES:]
        for line in map(_text, complete):
            self._muted |= line == TRACEBACK_FOLLOWS
            if not self._muted:
                yield line

    def last(self) -> Iterator[str]:
        """All remaining lines, including an unfinished one."""
        yield from self.lines()
        if self._rest and not self._muted:
            yield self.partial
        self._rest = b""

    def _read(self) -> bytes:
        try:
            with open_regular(self._path) as file:
                new = os.fstat(file.fileno()).st_size - self._position
                if new <= 0:
                    return b""
                skipped = max(0, new - SHOW_BYTES)
                file.seek(self._position + skipped)
                data = file.read(new - skipped)
        except (OSError, StorageError):  # does not exist yet, or is not readable
            return b""
        self._position += new
        if not skipped:
            return data
        self._rest = b""
        note = f"… {phrases.size(skipped)} more in {self._path.parent.name}/{self._path.name}\n"
        return note.encode() + data.partition(b"\n")[2]


def _text(line: bytes) -> str:
    """The line as a terminal shows it: the text after the last carriage return."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
