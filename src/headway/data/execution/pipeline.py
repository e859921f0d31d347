"""From a schedule to batches: a thread makes them ahead of the loop that takes them, and goes on into the next epoch.

    Reader ──blocks──▶ gather ──▶ operations ──▶ (re-batch) ──▶ finish ──▶ queue ──▶ the loop
     threads           └────────── one thread, or several ──────────┘

Where operations keep the number of rows, a batch is gathered, mapped and finished in one go, and its place in the order
is known. Where they do not, what they leave is put together anew, and the place of a batch is the chunk of the source
that its next row will come from.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from headway.core.errors import DataError
from headway.data.blocks.chunk import Chunk, gathered, joined, num_bytes, num_rows, sliced
from headway.data.execution.block_reader import BlockReader, Closed, Time
from headway.data.execution.daemon_threads import DaemonThreads
from headway.data.execution.map_executor import MapExecutor
from headway.data.operations.base import OpTally
from headway.data.plan import Plan
from headway.data.sharding.step_schedule import Schedule, Step


class Position(NamedTuple):
    """Where in the data: so many rows of this epoch's order are consumed, and of what came next ``skip`` rows more.

    ``done``: the epoch is over.
    """

    epoch: int = 0
    rows: int = 0
    skip: int = 0
    done: bool = False


class Batch(NamedTuple):
    """``after``: where in the data its consumer is when it has had it."""

    value: Any
    after: Position
    num_rows: int
    num_bytes: int


class EpochEnd(NamedTuple):
    """An epoch is over."""

    epoch: int


@dataclass(frozen=True)
class PipelineOptions:
    """``finish`` makes of a chunk what the loop gets. ``last_epoch``: where to end, None: never."""

    batch_size: int | None
    finish: Callable[[Chunk], Any] = lambda chunk: chunk
    prefetch: int = 1
    drop_last: bool = False
    budget: int = 1 << 30
    num_threads: int = 1
    num_spare: int = 0  # cores that other processes may use
    last_epoch: int | None = None


@dataclass
class PipelineFigures:
    """What has happened so far, for whoever wants to know what training waits for."""

    ops: list[OpTally] = field(default_factory=list)
    batches: int = 0
    rows: int = 0
    waited_s: float = 0.0
    began: float = field(default_factory=time.perf_counter)


class Pipeline:
    """Belongs to the loop that takes from it; close it, or take all."""

    def __init__(self, plan: Plan, schedule: Schedule, begin: Position, options: PipelineOptions) -> None:
        self._plan = plan
        self._schedule = schedule
        self._options = options
        self._begin = begin
        self.figures = PipelineFigures([OpTally(op.title) for op in plan.ops])
        self.reader = BlockReader(plan.source, plan.columns, options.budget, options.num_threads, self._needs())
        self._made: queue.Queue[Batch | EpochEnd | BaseException] = queue.Queue(max(1, options.prefetch))
        self._stop = threading.Event()
        self._local = threading.local()
        self._mappers: list[MapExecutor] = []
        self._pool = DaemonThreads(options.num_threads, "headway-data-map") if options.num_threads > 1 else None
        self.coming = begin.epoch + begin.done  # the epoch whose batches come next
        self._thread = threading.Thread(target=self._work, name="headway-data", daemon=True)
        self._thread.start()

    # --- the loop's side ---

    def epoch(self) -> Iterator[Batch]:
        """The batches of the epoch that comes next."""
        while True:
            began = time.perf_counter()
            made = self._made.get()
            self.figures.waited_s += time.perf_counter() - began
            if isinstance(made, EpochEnd):
                self.coming = made.epoch + 1
                if made.epoch == self._options.last_epoch:
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

    def close(self) -> None:
        """Stop making batches. What runs ends by itself; nothing of it is needed any more."""
        if self._stop.is_set():
            return
        self._stop.set()
        self.reader.close()
        if self._pool is not None:
            self._pool.close()
        while True:  # whoever stands at the full queue may pass
            try:
                self._made.get_nowait()
            except queue.Empty:
                break
        for mapper in self._mappers:
            mapper.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(5)
            self.reader.join()
            if self._pool is not None:
                self._pool.join()
        with contextlib.suppress(queue.Full):
            self._made.put_nowait(Closed())  # for whoever waits for a batch, or will

    # --- in its thread ---

    def _work(self) -> None:
        try:
            for made in self._all():
                self._hand_over(made)
        except Closed:
            return
        except BaseException as error:  # the loop must hear of it, whatever it is
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
        first = self._begin
        if first.done:
            first = Position(first.epoch + 1)
        yield first
        for epoch in itertools.count(first.epoch + 1):
            yield Position(epoch)

    def _needs(self) -> Iterator[tuple[Time, Time, int]]:
        for begin in self._epochs():
            last = self._options.last_epoch
            if last is not None and begin.epoch > last:
                return
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
            if begin.epoch == self._options.last_epoch:
                return

    def _chunks(self, begin: Position, *, finish: bool) -> Iterator[Batch]:
        """In order; several at the same time where there are threads for it. What cannot be read comes last."""
        running: deque[Future[Batch]] = deque()
        trouble: Exception | None = None
        for step in self._schedule.steps(begin.epoch, begin.rows):
            pieces, where = _pieces(step)
            try:
                blocks = self.reader.blocks(pieces, (begin.epoch, step.at))
            except Closed:
                raise
            except Exception as error:  # whatever a source raises: the batches before it are whole
                trouble = error
                break
            after = Position(begin.epoch, step.position)
            job = _BatchJob(self, pieces, blocks, where, step, after, finish)
            if self._pool is None:
                yield job()
            else:
                running.append(self._pool.submit(job))
                if len(running) > self._options.num_threads:
                    yield running.popleft().result()
            self.reader.passed((begin.epoch, step.at))
        while running:
            yield running.popleft().result()
        if trouble is not None:
            raise trouble

    def _rebatched(self, begin: Position, chunks: Iterator[Batch]) -> Iterator[Batch]:
        """Batches of the size that was asked for, out of chunks of any size."""
        size = self._options.batch_size
        left: list[tuple[Chunk, Position, int]] = []  # rows that wait: a chunk, where it began, how many of it are gone
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
        if waiting and not (self._options.drop_last and size is not None):
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
        return Batch(self._options.finish(chunk), after, size, num_bytes(chunk))

    @property
    def mapper(self) -> MapExecutor:
        """This thread's own operations."""
        if not hasattr(self._local, "mapper"):
            self._local.mapper = MapExecutor(self._plan.ops, self.figures.ops, self._options.num_spare)
            self._mappers.append(self._local.mapper)
        mapper: MapExecutor = self._local.mapper
        return mapper

    @property
    def executors(self) -> list[str]:
        """Where operations run now, for each thread that runs any."""
        return [mapper.where for mapper in self._mappers]


@dataclass(frozen=True)
class _BatchJob:
    """Make one chunk."""

    pipeline: Pipeline
    pieces: list[int]
    blocks: list[Any]
    where: Any
    step: Step
    after: Position
    finish: bool

    def __call__(self) -> Batch:
        there = self._there()
        chunk = self._gathered(there)
        rows = self.step.picks.rows
        kept = np.arange(len(rows)) if there is None else np.flatnonzero(there)
        chunk = self.pipeline.mapper(chunk, lambda number: self._row_name(kept, number)) if chunk else chunk
        self._check_size(chunk)
        value = self.pipeline._options.finish(chunk) if self.finish else chunk
        return Batch(value, self.after, num_rows(chunk), num_bytes(chunk))

    def _there(self) -> Any:
        """Which of the rows are there: of what was filtered out when it was read, nothing is. None: all are."""
        if self.pipeline._plan.source.exact:
            return None
        sizes = np.array([block.num_rows for block in self.blocks])
        return self.step.picks.rows < (sizes[0] if self.where is None else sizes[self.where])

    def _gathered(self, there: Any) -> Chunk:
        rows, where = self.step.picks.rows, self.where
        if there is None:
            return gathered(self.blocks, where, rows)
        where = np.zeros(len(rows), np.int64) if where is None else where
        used = list(np.unique(where[there]))
        if not used:
            return {}
        return gathered([self.blocks[number] for number in used], np.searchsorted(used, where[there]), rows[there])

    def _check_size(self, chunk: Chunk) -> None:
        size, budget = num_bytes(chunk), self.pipeline.reader.budget
        if size > budget:
            titles = ", ".join(op.title for op in self.pipeline._plan.ops) or "reading"
            raise DataError(
                f"{titles} made {size >> 20:,} MiB of {len(self.step.picks.rows):,} rows, more than the budget of "
                f"{budget >> 20:,} MiB: take smaller batches, or raise DataContext.memory_budget_bytes"
            )

    def _row_name(self, kept: Any, number: int) -> str:
        if number >= len(kept):
            return "the last row"
        piece, row = int(self.step.picks.pieces[kept[number]]), int(self.step.picks.rows[kept[number]])
        source = self.pipeline._plan.source
        return f"row {sum(source.counts[:piece]) + row} of the dataset ({source.where(piece)}, row {row} of it)"


def _pieces(step: Step) -> tuple[list[int], Any]:
    """The pieces of a step, and for each row which of them it is in."""
    picked = step.picks.pieces
    first = int(picked[0])
    if picked[-1] == first and (picked == first).all():
        return [first], None
    pieces, where = np.unique(picked, return_inverse=True)
    return pieces.tolist(), where
