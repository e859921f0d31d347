"""``headway logs``: print the output of a run's ranks, each line with its rank; ``--follow`` also prints new lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from headway.cli.runs import find
from headway.core import phrases
from headway.core.errors import StorageError
from headway.observe.terminal_text import colored, plain
from headway.storage.fs_ops import after_hole, entries, open_regular
from headway.storage.run import layout
from headway.storage.run.reader import RunReader

_CHUNK_BYTES = 1 << 16  # also the size of the pieces in which longer lines are printed


def logs(run: str, storage_path: str | None, *, rank: int | None, follow: bool) -> int:
    """Print the logs of all ranks or of one. ``follow``: print new lines until the run ends, across restarts."""
    record = find(run, storage_path)
    reader = _Reader(record.path / layout.LOGS, rank)
    alive, printed = True, False
    while alive:
        alive = follow and record.is_open  # checked before reading, so that the last lines are read below
        record.location.fetch_logs(record.path)
        for number, line in reader.lines(whole=not alive):
            printed = True
            print(f"[r{number}] {colored(line)}")
        sys.stdout.flush()
        if alive:
            time.sleep(record.location.log_poll_s)
    if not reader.ranks:
        raise StorageError(_missing(record, rank))
    if not printed:
        print(plain(f"headway: the ranks of run {record.name} have printed nothing"), file=sys.stderr)
    if follow:
        state = find(run, storage_path).state  # read again, because for a store the record is a copy
        print(plain(f"headway: run {record.name} has ended: {state}"), file=sys.stderr)
    return 0


def _missing(record: RunReader, rank: int | None) -> str:
    known = _ranks(record.path / layout.LOGS)
    which = f"rank {rank} of run {record.name}" if rank is not None else f"run {record.name}"
    there = f"; there are logs of {phrases.ranks(known)}" if known else ""
    return f"{which}has not written a log{there}"


def _ranks(folder: Path) -> set[int]:
    return {int(found[1]) for path in entries(folder) if (found := layout.RANK_LOG.fullmatch(path.name))}


def _opened(path: Path) -> BufferedReader:
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise StorageError(f"{path} was removed, or is a broken link") from None


class _Reader:
    """A reader of growing log files, line by line."""

    def __init__(self, folder: Path, rank: int | None) -> None:
        self._folder = folder
        self._rank = rank
        self._positions: dict[str, int] = {}
        self._rests: dict[str, bytes] = {}
        self.ranks: set[int] = set()

    def lines(self, *, whole: bool) -> Iterator[tuple[int, str]]:
        """Yield new lines with their ranks. ``whole``: including unfinished lines."""
        found = [match for path in entries(self._folder) if (match := layout.RANK_LOG.fullmatch(path.name))]
        for match in sorted(found, key=lambda match: (int(match[1]), match[2] == "err")):
            number = int(match[1])
            if self._rank in (None, number):
                self.ranks.add(number)
                for line in self._new(match[0], whole=whole):
                    # Print only the last state of a progress bar.
                    yield number, line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")

    def _new(self, name: str, *, whole: bool) -> Iterator[bytes]:
        rest = self._rests.get(name, b"")
        with _opened(self._folder / name) as file:
            position = self._positions.get(name, 0)
            if file.seek(0, 2) < position:  # the file was replaced by a new run with this name
                position, rest = 0, b""
            file.seek(position)
            while data := file.read(_CHUNK_BYTES):
                position += len(data)
                if not data.strip(b"\0"):  # perhaps a hole of terabytes, if the file was truncated while a rank wrote
                    position = file.seek(after_hole(file.fileno(), position))
                    continue
                *lines, rest = (rest + data).split(b"\n")
                yield from lines
                if len(rest) > _CHUNK_BYTES:
                    yield rest
                    rest = b""
        if whole and rest:
            yield rest
            rest = b""
        self._positions[name], self._rests[name] = position, rest
