"""Blocks, read ahead by threads, within a budget of bytes.

    needs ──▶ reading ──▶ held ──(their last row is passed)──▶ kept for later epochs, while there is room

What is held or being read never takes more than the budget: the next piece is read when there is room for it. What
is kept from former epochs makes room first. A lane is read in the same pieces every epoch, so the pieces that came
first stay and those that came last go: the other way round, nothing that is kept would ever be of use again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headway.core.errors import DataError
from headway.data.datasource.base import Columns, DataSource
from headway.data.execution.daemon_threads import DaemonThreads
from headway.data.operations.base import OpTally

AHEAD = 1  # pieces that are being read beyond one per thread

Time = tuple[int, int]  # epoch, row of the lanes


@dataclass
class HeldBlock:
    """A piece that is there, or on its way: then ``size`` is what it is expected to be."""

    until: Time
    size: int
    table: pa.Table | None = None
    error: BaseException | None = None


class BlockReader:
    def __init__(
        self,
        source: DataSource,
        columns: Columns,
        budget: int,
        num_threads: int,
        needs: Iterator[tuple[Time, Time, int]],
    ) -> None:
        self.tally = OpTally(source.name)
        self.budget = budget
        self._room = budget - budget // 4  # decoding takes memory of its own: the rest is for that
        self._source = source
        self._columns = columns
        self._needs = needs
        self._next: tuple[Time, Time, int] | None = next(needs, None)
        self._held: dict[int, HeldBlock] = {}
        self._cache: dict[int, pa.Table] = {}
        self._cached_bytes = 0
        self._held_bytes = 0
        self._outside_bytes = 0  # batches that were made and not taken yet
        self.most_bytes = 0
        self._ratio = 1.0  # how much larger pieces are than their source has said
        self._num_threads = num_threads
        self._threads = DaemonThreads(num_threads, "headway-data-read")
        self._changed = threading.Condition()
        self._closed = False

    def blocks(self, pieces: Sequence[int], now: Time) -> list[pa.Table]:
        """These pieces; waits until they are there."""
        with self._changed:
            for piece in pieces:
                self._ask(piece, now)
            self._pump()
            self._changed.wait_for(lambda: self._closed or all(map(self._is_there, pieces)))
            if self._closed:
                raise Closed
            return [self._table(piece) for piece in pieces]

    def _is_there(self, piece: int) -> bool:
        held = self._held[piece]
        return held.table is not None or held.error is not None

    def _table(self, piece: int) -> pa.Table:
        held = self._held[piece]
        if held.error is not None:
            raise held.error
        return held.table

    def passed(self, now: Time) -> None:
        """Nothing that was needed only up to here is needed any more."""
        with self._changed:
            for piece in [piece for piece, held in self._held.items() if held.until <= now and self._is_there(piece)]:
                self._release(piece)
            self._pump()

    def made(self, size: int) -> None:
        """A batch of so many bytes waits for the loop."""
        with self._changed:
            self._outside_bytes += size

    def taken(self, size: int) -> None:
        """The loop has it: it is not ours any more."""
        with self._changed:
            self._outside_bytes -= size

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._threads.close()

    def join(self) -> None:
        self._threads.join()

    @property
    def depth(self) -> int:
        return len(self._held)

    # --- with the lock held ---

    def _release(self, piece: int) -> None:
        held = self._held.pop(piece)
        self._held_bytes -= held.size
        if held.table is not None and self._used() + held.size <= self._room // 4 * 3:
            self._cache[piece] = held.table
            self._cached_bytes += held.size

    def _used(self) -> int:
        return self._held_bytes + self._cached_bytes + self._outside_bytes

    def _pump(self) -> None:
        """Begin to read what is needed next, as far as there is room. What is held for now is not looked beyond."""
        while self._next is not None and not self._closed:
            first, until, piece = self._next
            held = self._held.get(piece)
            if held is not None and first > held.until:
                return
            if held is None and self._num_reading() >= self._num_threads + AHEAD:
                return
            if not self._begin(piece, until, must=False):
                return
            self._next = next(self._needs, None)

    def _num_reading(self) -> int:
        return sum(held.table is None for held in self._held.values())

    def _ask(self, piece: int, now: Time) -> None:
        if piece not in self._held:
            while self._next is not None and self._next[0] <= now:  # mostly it is among those that come next
                self._begin(self._next[2], self._next[1], must=True)
                self._next = next(self._needs, None)
        if piece not in self._held:
            self._begin(piece, (now[0], now[1] + 1), must=True)

    def _begin(self, piece: int, until: Time, *, must: bool) -> bool:
        if piece in self._held:
            self._held[piece].until = max(self._held[piece].until, until)
            return True
        if piece in self._cache:
            table = self._cache.pop(piece)
            self._cached_bytes -= table.nbytes
            self._held_bytes += table.nbytes
            self._held[piece] = HeldBlock(until, table.nbytes, table)
            return True
        size = int(self._source.size(piece) * self._ratio)
        while self._cache and self._used() + size > self._room:
            _, last = self._cache.popitem()
            self._cached_bytes -= last.nbytes
        if self._used() + size > self._room:
            if not must:
                return False
            if self._held_bytes + size > self.budget:
                raise self._too_large(piece, size)
        self._held[piece] = HeldBlock(until, size)
        self._held_bytes += size
        self.most_bytes = max(self.most_bytes, self._used())
        self._threads.submit(lambda: self._read(piece))
        return True

    def _too_large(self, piece: int, size: int) -> DataError:
        return DataError(
            f"{self._source.where(piece)} and what must be in memory beside it take about "
            f"{(self._held_bytes + size) >> 20:,} MiB, more than the budget of {self.budget >> 20:,} MiB: raise "
            "DataContext.memory_budget_bytes, write the files with smaller row groups, or shuffle in a smaller window"
        )

    # --- in a thread ---

    def _read(self, piece: int) -> None:
        if self._closed:
            return
        began = time.perf_counter()
        table: Any = None
        error: BaseException | None = None
        try:
            table = self._source.read(piece, self._columns).combine_chunks()
            expected = self._source.counts[piece]
            if self._source.exact and table.num_rows != expected:
                raise DataError(
                    f"{self._source.where(piece)} has {table.num_rows:,} rows now, and had {expected:,}: "
                    "it has changed since the dataset was made"
                )
        except BaseException as caught:  # whatever it is, the loop must hear of it
            error, table = caught, None
        with self._changed:
            held = self._held.get(piece)
            if held is not None:
                self._arrived(held, piece, table, error, time.perf_counter() - began)
            self._changed.notify_all()
            if error is None:
                self._pump()

    def _arrived(self, held: HeldBlock, piece: int, table: Any, error: BaseException | None, seconds: float) -> None:
        held.table, held.error = table, error
        if table is None:
            return
        self._held_bytes += table.nbytes - held.size
        held.size = table.nbytes
        expected = self._source.size(piece)
        if expected:
            self._ratio = max(self._ratio, table.nbytes / expected)
        self.most_bytes = max(self.most_bytes, self._used())
        self.tally.add(table.num_rows, table.nbytes, seconds)


class Closed(Exception):
    """Nobody wants these blocks any more."""
