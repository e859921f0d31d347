"""The reader of a pipeline's blocks, which reads ahead in threads and within a budget of bytes.

    needs ──▶ reading ──▶ held ──(their last row is passed)──▶ cached for later epochs, while there is room

The blocks held or being read never exceed the budget; the next piece is read when there is room for it. Blocks cached
from earlier epochs are dropped first, the most recently read before the others: a lane is read in the same pieces in
every epoch, so with the opposite policy a block would always be dropped before it is used again.
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

AHEAD = 1  # pieces queued for reading in addition to one per thread

Time = tuple[int, int]  # epoch, row of the lanes


@dataclass
class HeldBlock:
    """A piece that is in memory or being read; ``size`` is an estimate until the piece is in memory."""

    until: Time
    size: int
    table: pa.Table | None = None
    error: BaseException | None = None

    @property
    def is_read(self) -> bool:
        return self.table is not None or self.error is not None


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
        self._room = budget - budget // 4  # the rest is for decoding, which needs additional memory
        self._source = source
        self._columns = columns
        self._needs = needs
        self._next: tuple[Time, Time, int] | None = next(needs, None)
        self._held: dict[int, HeldBlock] = {}
        self._cache: dict[int, pa.Table] = {}
        self._cached_bytes = 0
        self._held_bytes = 0
        self._outside_bytes = 0  # bytes of batches that wait for the loop
        self.most_bytes = 0
        self._ratio = 1.0  # the actual size of blocks relative to the source's estimates
        self._num_threads = num_threads
        self._threads = DaemonThreads(num_threads, "headway-data-read")
        self._changed = threading.Condition()
        self._closed = False

    def blocks(self, pieces: Sequence[int], now: Time) -> list[pa.Table]:
        """Return these pieces; wait until they have been read."""
        with self._changed:
            for piece in pieces:
                self._ask(piece, now)
            self._pump()
            self._changed.wait_for(lambda: self._closed or all(self._held[piece].is_read for piece in pieces))
            if self._closed:
                raise Closed
            held = [self._held[piece] for piece in pieces]
            for block in held:
                if block.error is not None:
                    raise block.error
            return [block.table for block in held]

    def passed(self, now: Time) -> None:
        """Release the pieces that are not needed after ``now``, and continue reading."""
        with self._changed:
            for piece, held in list(self._held.items()):
                if held.until <= now and held.is_read:
                    self._release(piece)
            self._pump()

    def made(self, size: int) -> None:
        """Count the bytes of a batch that now waits for the loop."""
        with self._changed:
            self._outside_bytes += size

    def taken(self, size: int) -> None:
        """Stop counting the bytes of a batch that the loop has taken."""
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
        """Start reading the pieces that are needed next, while there is room and a thread is free.

        A piece that is needed again later is not read again until its first need has ended.
        """
        while self._next is not None and not self._closed:
            first, until, piece = self._next
            held = self._held.get(piece)
            if held is not None and first > held.until:
                return
            num_reading = sum(block.table is None for block in self._held.values())
            if held is None and num_reading >= self._num_threads + AHEAD:
                return
            if not self._begin(piece, until, must=False):
                return
            self._next = next(self._needs, None)

    def _ask(self, piece: int, now: Time) -> None:
        """Start reading a piece that a batch is waiting for, even if there is no room."""
        if piece not in self._held:
            while self._next is not None and self._next[0] <= now:  # usually the piece is among the next ones
                self._begin(self._next[2], self._next[1], must=True)
                self._next = next(self._needs, None)
        if piece not in self._held:
            self._begin(piece, (now[0], now[1] + 1), must=True)

    def _begin(self, piece: int, until: Time, *, must: bool) -> bool:
        """Hold a piece until ``until``; read it if necessary. False if there is no room and ``must`` is false."""
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
        self._threads.submit(self._read, piece)
        return True

    def _too_large(self, piece: int, size: int) -> DataError:
        return DataError(
            f"{self._source.where(piece)} and the blocks that must be in memory with it need about "
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
                    f"{self._source.where(piece)} has {table.num_rows:,} rows instead of {expected:,}: "
                    "it has changed since the dataset was created"
                )
        except BaseException as caught:  # blocks() raises it
            error, table = caught, None
        with self._changed:
            held = self._held.get(piece)
            if held is not None:
                held.table, held.error = table, error
                if table is not None:
                    self._account(held, table, piece, time.perf_counter() - began)
            self._changed.notify_all()
            if error is None:
                self._pump()

    def _account(self, held: HeldBlock, table: pa.Table, piece: int, seconds: float) -> None:
        """Replace the estimate of a block's size by its actual size."""
        self._held_bytes += table.nbytes - held.size
        held.size = table.nbytes
        expected = self._source.size(piece)
        if expected:
            self._ratio = max(self._ratio, table.nbytes / expected)
        self.most_bytes = max(self.most_bytes, self._used())
        self.tally.add(table.num_rows, table.nbytes, seconds)


class Closed(Exception):
    """The pipeline was closed while a thread waited for it."""
