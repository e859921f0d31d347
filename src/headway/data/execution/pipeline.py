"""The pipeline of batches: a thread makes batches ahead of the loop that takes them, even for later epochs.

    BlockReader ──blocks──▶ gather ──▶ operations ──▶ (re-batch) ──▶ finish ──▶ queue ──▶ the loop
       threads              └────────── one thread, or several ──────────┘

If operations keep the number of rows, a batch is gathered, mapped and finished in one step, and its position in the
order is known. If not, the resulting rows are combined into batches, and the position after a batch is the chunk of the
source that contains the next row.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headway.core.errors import DataError
from headway.data.blocks.chunk import Chunk, gathered, joined, num_bytes, num_rows, sliced
from headway.data.execution.block_reader import BlockReader, Closed, Time
from headway.data.execution.daemon_threads import DaemonThreads
from headway.data.execution.map_executor import MapExecutor
from headway.data.operations.base import OpTally
from headway.data.plan import Plan
from headway.data.sharding.row_order import Array
from headway.data.sharding.step_schedule import Schedule, Step


class Position(NamedTuple):
    """The position of a consumer: ``rows`` of the epoch's order, and ``skip`` of the rows that come next.

    ``done``: the epoch has ended.
    """

    epoch: int = 0
    rows: int = 0
    skip: int = 0
    done: bool = False


class Batch(NamedTuple):
    """A batch; ``after`` is the position of the consumer once it has taken the batch."""

    value: Any
    after: Position
    num_rows: int
    num_bytes: int


class EpochEnd(NamedTuple):
    """A marker of the end of an epoch in the queue."""

    epoch: int


@dataclass(frozen=True)
class PipelineOptions:
    """Options of a pipeline. ``finish`` converts a chunk for the loop. ``last_epoch`` None: there is no last epoch."""

    batch_size: int | None
    finish: Callable[[Chunk], Any] = lambda chunk: chunk
    prefetch: int = 1
    drop_last: bool = False
    budget: int = 1 << 30
    num_threads: int = 1
    num_spare: int = 0  # cores available to other processes
    last_epoch: int | None = None


@dataclass
class PipelineFigures:
    """Counts and times so far, which show what training waits for."""

    ops: list[OpTally] = field(default_factory=list)
    batches: int = 0
    rows: int = 0
    waited_s: float = 0.0
    began: float = field(default_factory=time.perf_counter)


class Pipeline:
    """A pipeline that belongs to the loop that takes its batches. The loop must take all batches or close it."""

    def __init__(self, plan: Plan, schedule: Schedule, begin: Position, options: PipelineOptions) -> None:
        self.options = options
        self.figures = PipelineFigures([OpTally(op.title) for op in plan.ops])
        self.coming = begin.epoch + begin.done  # the epoch whose batches come next
        self._plan = plan
        self._schedule = schedule
        self._begin = Position(self.coming) if begin.done else begin
        self.reader = BlockReader(plan.source, plan.columns, options.budget, options.num_threads, self._needs())
        self._made: queue.Queue[Batch | EpochEnd | BaseException] = queue.Queue(max(1, options.prefetch))
        self._stop = threading.Event()
        self._local = threading.local()
        self._mappers: list[MapExecutor] = []
        self._pool = DaemonThreads(options.num_threads, "headway-data-map") if options.num_threads > 1 else None
        self._thread = threading.Thread(target=self._work, name="headway-data", daemon=True)
        self._thread.start()

    # --- in the thread of the loop ---

    def epoch(self) -> Iterator[Batch]:
        """Yield the batches of the next epoch."""
        while True:
            began = time.perf_counter()
            made = self._made.get()
            self.figures.waited_s += time.perf_counter() - began
            if isinstance(made, EpochEnd):
                self.coming = made.epoch + 1
                if made.epoch == self.options.last_epoch:
                    self.close()
                return
            if isinstance(made, BaseException):
                self.close()
                raise made
            self.reader.taken(made.num_bytes)
            self.figures.batches += 1
            self.figures.rows += made.num_rows
            yield made

    @property
    def queued(self) -> int:
        return self._made.qsize()

    @property
    def closed(self) -> bool:
        return self._stop.is_set()

    @property
    def executors(self) -> list[str]:
        """Where each mapping thread currently runs operations: "thread" or "process"."""
        return [mapper.where for mapper in self._mappers]

    def close(self) -> None:
        """Stop making batches. Threads end by themselves."""
        if self._stop.is_set():
            return
        self._stop.set()
        self.reader.close()
        if self._pool is not None:
            self._pool.close()
        with contextlib.suppress(queue.Empty):
            while True:  # the thread may be waiting because the queue is full
                self._made.get_nowait()
        for mapper in self._mappers:
            mapper.hang_up()
        for mapper in self._mappers:
            mapper.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(5)
            self.reader.join()
            if self._pool is not None:
                self._pool.join()
        with contextlib.suppress(queue.Full):
            self._made.put_nowait(Closed())  # for a loop that waits for a batch now or later

    # --- in the pipeline's thread ---

    def _work(self) -> None:
        try:
            for made in self._all():
                self._hand_over(made)
        except Closed:
            return
        except BaseException as error:  # the loop raises it
            with contextlib.suppress(Closed):
                self._hand_over(error)

    def _hand_over(self, made: Batch | EpochEnd | BaseException) -> None:
        if isinstance(made, Batch):
            self.reader.made(made.num_bytes)
        while not self._stop.is_set():
            try:
                self._made.put(made, timeout=0.5)
                return
            except queue.Full:
                continue
        raise Closed

    def _epochs(self) -> Iterator[Position]:
        """Yield the position at which each epoch begins."""
        yield self._begin
        for epoch in itertools.count(self._begin.epoch + 1):
            if self.options.last_epoch is not None and epoch > self.options.last_epoch:
                return
            yield Position(epoch)

    def _needs(self) -> Iterator[tuple[Time, Time, int]]:
        """Yield the pieces to read and the time during which each is needed: (first, until, piece)."""
        for begin in self._epochs():
            epoch, found = begin.epoch, False
            for need in self._schedule.needs(epoch, begin.rows):
                found = True
                yield (epoch, need.first), (epoch, need.end), need.piece
            if not found and not begin.rows:
                return  # this rank has no rows at all

    def _all(self) -> Iterator[Batch | EpochEnd]:
        keeps = self._plan.keeps_rows
        for begin in self._epochs():
            chunks = self._chunks(begin, finish=keeps)
            yield from chunks if keeps else self._rebatched(begin, chunks)
            self.reader.passed((begin.epoch + 1, 0))
            yield EpochEnd(begin.epoch)

    def _chunks(self, begin: Position, *, finish: bool) -> Iterator[Batch]:
        """Yield chunks in order, several made in parallel if there are threads; raise a read error after the last."""
        running: deque[Future[Batch]] = deque()
        failure: Exception | None = None
        for step in self._schedule.steps(begin.epoch, begin.rows):
            pieces, where = _pieces(step)
            try:
                blocks = self.reader.blocks(pieces, (begin.epoch, step.at))
            except Closed:
                raise
            except Exception as error:  # raised by a source; earlier batches are still yielded
                failure = error
                break
            after = Position(begin.epoch, step.position)
            if self._pool is None:
                yield self._make_batch(step, blocks, where, after, finish)
            else:
                running.append(self._pool.submit(self._make_batch, step, blocks, where, after, finish))
                if len(running) > self.options.num_threads:
                    yield running.popleft().result()
            self.reader.passed((begin.epoch, step.at))
        while running:
            yield running.popleft().result()
        if failure is not None:
            raise failure

    def _rebatched(self, begin: Position, chunks: Iterator[Batch]) -> Iterator[Batch]:
        """Yield batches of the requested size, from chunks of any size."""
        size = self.options.batch_size
        left: list[
            tuple[Chunk, Position, int]
        ] = []  # rows that wait: a chunk, its position, how many of its rows are used
        waiting, before = 0, begin._replace(skip=0)
        skip = begin.skip
        for made in chunks:
            total = num_rows(made.value)
            if total > skip:
                left.append((sliced(made.value, skip, total), before, skip))
                waiting += total - skip
            skip = max(0, skip - total)
            before = made.after
            while size is not None and waiting >= size:
                yield self._put_together(left, size, before)
                waiting -= size
        if waiting and not (self.options.drop_last and size is not None):
            yield self._put_together(left, waiting, before)

    def _put_together(self, left: list[tuple[Chunk, Position, int]], size: int, upto: Position) -> Batch:
        parts, missing = [], size
        while missing:
            chunk, began, gone = left.pop(0)
            rows = num_rows(chunk)
            parts.append(sliced(chunk, 0, min(rows, missing)))
            if rows > missing:
                left.insert(0, (sliced(chunk, missing, rows), began, gone + missing))
            missing -= min(rows, missing)
        after = left[0][1]._replace(skip=left[0][2]) if left else upto
        chunk = joined(parts)
        chunk = {name: column.copy() if isinstance(column, np.ndarray) else column for name, column in chunk.items()}
        return Batch(self.options.finish(chunk), after, size, num_bytes(chunk))

    # --- in the pipeline's thread, or in one of its pool ---

    def _make_batch(
        self, step: Step, blocks: Sequence[pa.Table], where: Array | None, after: Position, finish: bool
    ) -> Batch:
        """Make the batch of a step, or its chunk if ``finish`` is false. Row i is in block ``where[i]``."""
        rows = step.picks.rows
        present = None
        if not self._plan.source.exact:  # a block has fewer rows than were counted if some were skipped
            where = np.zeros(len(rows), np.int64) if where is None else where
            present = np.flatnonzero(rows < np.array([block.num_rows for block in blocks])[where])
            used, where = np.unique(where[present], return_inverse=True)
            blocks, rows = [blocks[number] for number in used], rows[present]
        chunk = gathered(blocks, where, rows) if len(rows) else {}
        if chunk:
            if not hasattr(self._local, "mapper"):
                self._local.mapper = MapExecutor(self._plan.ops, self.figures.ops, self.options.num_spare)
                self._mappers.append(self._local.mapper)
                if self._stop.is_set():  # close() may not have seen the mapper
                    raise Closed
            chunk = self._local.mapper(chunk, lambda number: self._row_name(step, present, number))
        self._check_size(chunk, step)
        value = self.options.finish(chunk) if finish else chunk
        return Batch(value, after, num_rows(chunk), num_bytes(chunk))

    def _check_size(self, chunk: Chunk, step: Step) -> None:
        size, budget = num_bytes(chunk), self.options.budget
        if size > budget:
            titles = ", ".join(op.title for op in self._plan.ops) or "reading"
            raise DataError(
                f"{titles} produced {size >> 20:,} MiB from {len(step.picks.rows):,} rows, more than the budget of "
                f"{budget >> 20:,} MiB: use smaller batches, or raise DataContext.memory_budget_bytes"
            )

    def _row_name(self, step: Step, present: Array | None, number: int) -> str:
        """Describe the n-th row of a chunk for error messages."""
        if number >= len(step.picks.rows if present is None else present):
            return "the last row"
        at = number if present is None else present[number]
        piece, row = int(step.picks.pieces[at]), int(step.picks.rows[at])
        source = self._plan.source
        return f"row {sum(source.counts[:piece]) + row} of the dataset (row {row} of {source.where(piece)})"


def _pieces(step: Step) -> tuple[list[int], Array | None]:
    """Return the pieces of a step, and for each row the index of its piece; None if there is only one piece."""
    picked = step.picks.pieces
    first = int(picked[0])
    if picked[-1] == first and (picked == first).all():
        return [first], None
    pieces, where = np.unique(picked, return_inverse=True)
    return pieces.tolist(), where
