"""One consumer's way through a dataset, epoch after epoch: which epoch comes next, and how far it has come.

A training worker has one for each dataset; its position rides in every report, and another attempt begins with it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from headway.core.errors import ConfigError, DataError
from headway.data.blocks.chunk import Chunk, padded
from headway.data.context import DataContext
from headway.data.execution.batch_counter import Progress, Unwatched, Watcher, counted
from headway.data.execution.block_reader import Closed
from headway.data.execution.map_executor import spare_cores
from headway.data.execution.pipeline import Batch, Pipeline, PipelineOptions, Position
from headway.data.operations.base import UserOp
from headway.data.plan import Plan
from headway.data.sharding.row_order import Order
from headway.data.sharding.step_schedule import Schedule
from headway.data.sharding.step_sizes import next_step

_logger = logging.getLogger(__name__)

NOWHERE = Position(-1, done=True)  # no epoch has begun


class Agreement(Protocol):
    """How ranks find out which step is the last, where nobody can know before: see ``control.horizons``."""

    def has(self, epoch: int, num_batches: int, *, ended: bool) -> None:
        """This rank has so many batches; ``ended``: and no more."""

    def may(self, epoch: int, number: int) -> bool:
        """Whether every rank has batch ``number``; waits until that is known."""


@dataclass(frozen=True)
class ShardPlace:
    """Which part of the rows is ours."""

    rank: int = 0
    world_size: int = 1
    global_workers: int | None = None  # so many workers' rows make a step, however many there are
    local_world_size: int = 1


@dataclass(frozen=True)
class BatchOptions:
    """How a loop wants its batches. Equal ``key``s allow a running pipeline to be reused.

    Args:
        batch_size: rows of a batch; None: one batch per epoch.
        finish: what to make of the rows of a batch; runs in the pipeline's threads.
        deliver: wraps the iterator of batches in the thread of the loop, to copy them to a device for example.
        prefetch: how many batches are made ahead of the loop.
        drop_last: leave out a last batch that is too small.
        local_shuffle: shuffle rows among so many neighbours.
        local_seed: of the local shuffle; None: the run's own.
        pad_last: fill a batch that is too small by repeating its rows.
        form: identifies what ``finish`` and ``deliver`` do; None: pipelines are not reused.
    """

    batch_size: int | None = 256
    finish: Callable[[Chunk], Any] = lambda chunk: chunk
    deliver: Callable[[Iterator[Batch]], Iterator[Batch]] = lambda batches: batches
    prefetch: int = 1
    drop_last: bool = False
    local_shuffle: int | None = None
    local_seed: int | None = None
    pad_last: bool = False
    form: Hashable = None

    @property
    def key(self) -> Hashable:
        if self.form is None:
            return None
        local = (self.local_shuffle, self.local_seed)
        return self.form, self.batch_size, self.prefetch, self.drop_last, local, self.pad_last

    def finished(self, chunk: Chunk) -> Any:
        """The rows of a batch, as the loop wants them."""
        if self.pad_last and self.batch_size is not None:
            chunk = padded(chunk, self.batch_size)
        return self.finish(chunk)

    def __post_init__(self) -> None:
        if self.batch_size is not None and (not isinstance(self.batch_size, int) or self.batch_size < 1):
            raise DataError(f"batch_size must be a positive number or None, got {self.batch_size!r}")
        if self.pad_last and (self.drop_last or self.batch_size is None):
            raise DataError("pad_last fills batches up to a batch_size, and drop_last leaves them out: choose one")
        if self.prefetch < 0:
            raise DataError(f"prefetch_batches must not be negative, got {self.prefetch!r}")
        if self.local_shuffle is not None and self.local_shuffle < 1:
            raise DataError(f"local_shuffle_buffer_size must be positive, got {self.local_shuffle!r}")


@dataclass
class EpochStream:
    plan: Plan
    order: Order
    place: ShardPlace = ShardPlace()
    context: DataContext = field(default_factory=DataContext.get_current)
    name: str = ""
    position: Position = NOWHERE  # how far the loop is
    training: bool = False  # all ranks must make as many steps
    lasting: bool = False  # epochs follow one another: the next one is begun before it is asked for
    progress: Progress | None = None
    agreement: Agreement | None = None
    before_first_batch: Callable[[], None] = lambda: None
    watcher: Watcher = field(default_factory=Unwatched)
    num_to_skip: int = 0  # passes that a resumed epoch has had already: they give nothing
    pipeline: Pipeline | None = None
    local: list[Any] | None = None  # buffer and seed of the local shuffle that this epoch has
    _key: Hashable = None
    _later: Order | None = None  # the order of the next epoch, where this one is another's
    num_finished: int = 0  # epochs that this process has come to the end of
    at_boundary: bool = False  # this pass was running when an epoch of the function ended
    running: bool = False  # in this process
    crosses: bool | None = None  # whether such a pass goes on in the next epoch, as far as is known

    # --- what is known before ---

    @property
    def key(self) -> Hashable:
        """What the watcher is told."""
        return "dataset", self.name

    def schedule(self, wanted: BatchOptions) -> Schedule:
        place, order = self.place, self.order
        if wanted.local_shuffle is not None:
            order = _locally_shuffled(order, wanted)
        size = wanted.batch_size or -(-max(1, order.num_rows) // place.world_size)
        whole = size * max(place.world_size, place.global_workers or 0)
        drop_last = wanted.drop_last and wanted.batch_size is not None and self.plan.keeps_rows
        return Schedule(order, place.rank, place.world_size, whole, drop_last)

    def num_batches(self, wanted: BatchOptions) -> int:
        """Of a whole epoch; TypeError where that cannot be known."""
        if not self.plan.keeps_rows:
            raise TypeError("the number of batches is not known before they are made: the dataset is filtered")
        schedule = self.schedule(wanted)
        if self.order.num_rows < self.place.world_size:
            return sum(1 for _ in schedule.steps(0))
        return schedule.num_steps

    @property
    def told(self) -> Position:
        """Where whoever goes on shall begin: behind a pass that is running still, and that nobody will go on with."""
        left = self.at_boundary and self.crosses is False
        return Position(self.position.epoch, done=True) if left else self.position

    def end_epoch(self) -> bool:
        """An epoch of the function ends. False if its code holds an iterator, and may use it in the next one or not."""
        self.num_to_skip = 0
        if not (self.position.done or self.running) and self.crosses is False:  # the resumed epoch has not come to it
            self.position = Position(self.position.epoch, done=True)
        if self.undecided:  # it was not touched for an epoch: it stays where it is
            self.crosses = True
        self.at_boundary = not self.position.done
        return self.position.done or self.crosses is not None

    @property
    def undecided(self) -> bool:
        return self.at_boundary and self.crosses is None

    def coming(self) -> Position:
        """Where the next iteration begins."""
        return Position(self.position.epoch + 1) if self.position.done else self.position

    def check(self) -> None:
        rows = self.order.num_rows
        if self.training and rows < self.place.world_size and self.plan.keeps_rows:
            raise ConfigError(
                f"dataset {self.name!r} has {rows:,} rows for {self.place.world_size} workers: every worker needs one "
                "in every step; use fewer workers, or DataConfig(datasets_to_split=[...]) without it"
            )

    @property
    def lanes(self) -> int:
        """Of the order that we are in. Where rows are thrown away, only as many workers can go on."""
        return self.order.lanes if self.plan.keeps_rows else self.place.world_size

    def hold(self, lanes: int, window: int, local: list[Any] | None) -> None:
        """Finish the epoch that was begun in the order that it was begun in."""
        self._later, self.order = self.order, replace(self.order, lanes=lanes, window=window)
        self.local = local

    def _check_local(self, wanted: BatchOptions, begin: Position) -> None:
        """A local shuffle is part of the order: in the middle of an epoch it cannot become another."""
        now = None if wanted.local_shuffle is None else [wanted.local_shuffle, wanted.local_seed]
        if (begin.rows or begin.skip) and now != self.local:
            raise ConfigError(
                f"dataset {self.name!r} is in the middle of an epoch that was begun with local_shuffle_buffer_size and "
                f"seed {self.local or 'not set'}; now they are {now or 'not set'}. Finish it as it was begun"
            )
        self.local = now

    # --- iterating ---

    def iterate(self, wanted: BatchOptions) -> Generator[Any, None, None]:
        """The batches of the next epoch. Leaving the loop early ends the epoch."""
        self.check()
        if self.num_to_skip:
            self.num_to_skip -= 1
            self.watcher.begin(self.key)
            self.watcher.end(self.key)
            return
        if self.position.done and self._later is not None:
            self.close()  # what it has made ahead is in the old order
            self.order, self._later = self._later, None
        begin = self.coming()
        self._check_local(wanted, begin)
        pipeline = self._pipeline(wanted, begin)
        self.position = begin
        self.count_as_taken()
        batches = wanted.deliver(pipeline.epoch())
        if self.agreement is not None and not self.plan.keeps_rows:
            batches = _agreed(batches, begin.epoch, self.agreement, self.name)
        if not begin.rows and not begin.skip:
            self.before_first_batch()
        self.watcher.begin(self.key)
        self.running = True
        try:
            for number, batch in enumerate(batches if self.progress is None else counted(batches, self.progress), 1):
                self.before_first_batch()
                self.position = batch.after
                yield batch.value
                self.count_as_taken()
                self._leave_boundary(crossed=True)
                self.watcher.ask(self.key, last=self._is_last(wanted, begin.epoch, number))
            self.before_first_batch()  # if nothing was left, training is resumed behind the loop
        except Closed:
            raise DataError(
                f"another iteration of {self.name or 'this dataset'} has begun, which ends this one"
            ) from None
        except BaseException:
            # GeneratorExit, too: the loop was left by break, and for it this epoch is over; or it was left by an
            # exception, and its rows were not trained with. Which of the two is known when it reports or goes on.
            self._leave_boundary(crossed=False)
            pipeline.close()
            raise
        finally:
            self.running = False
            if not self.position.done:
                self.position = Position(begin.epoch, done=True)
                self.num_finished += 1
                self.watcher.end(self.key)
            if pipeline.coming == begin.epoch:  # the others have no more rows, and we have: what is left is left
                pipeline.close()
        self.count_as_taken()

    def _leave_boundary(self, *, crossed: bool) -> None:
        if self.at_boundary:
            self.at_boundary, self.crosses = False, crossed

    def count_as_taken(self) -> None:
        """The loop is through with the rows that it was given: it asks for more, or reports.

        Ranks with equal numbers have come equally far, however many batches of their own that makes.
        """
        if self.progress is not None and self.place.world_size > 1:
            epoch, rows, _, done = self.position
            self.progress.taken[self.name] = (epoch + done) * self.order.num_rows + (0 if done else rows)

    def _is_last(self, wanted: BatchOptions, epoch: int, number: int) -> bool:
        """Whether no batch follows these in this epoch, as far as that is known: all ranks must think the same."""
        if self.agreement is not None and not self.plan.keeps_rows:
            return not self.agreement.may(epoch, number)
        schedule, left = self.schedule(wanted), self.order.num_rows - self.position.rows
        return not next_step(left, schedule.global_batch, schedule.world_size, drop_last=schedule.drop_last)

    def _pipeline(self, wanted: BatchOptions, begin: Position) -> Pipeline:
        running = self.pipeline
        if running is not None and not running.closed:
            if self._key == wanted.key and wanted.key is not None and (running.coming, begin.rows) == (begin.epoch, 0):
                return running
            if self.lasting:
                running.close()
        place = self.place
        options = PipelineOptions(
            batch_size=wanted.batch_size,
            finish=wanted.finished,
            prefetch=wanted.prefetch,
            drop_last=wanted.drop_last,
            budget=self.context.budget(place.local_world_size),
            num_threads=self._num_threads(),
            num_spare=spare_cores(place.local_world_size),
            last_epoch=None if self.lasting else begin.epoch,
        )
        self._key = wanted.key
        self.pipeline = Pipeline(self.plan, self.schedule(wanted), begin, options)
        return self.pipeline

    def _num_threads(self) -> int:
        asked = [op.num_threads for op in self.plan.ops if isinstance(op, UserOp) and op.num_threads is not None]
        return max(asked, default=self.context.threads(self.place.local_world_size))

    def close(self) -> None:
        if self.pipeline is not None:
            self.pipeline.close()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():  # what is left then goes with the process, and modules are gone already
            with contextlib.suppress(Exception):
                self.close()


class Batches:
    """What ``iter_batches`` and its relatives return: each ``iter()`` is the next epoch. ``len()`` is exact."""

    def __init__(self, stream: EpochStream, options: BatchOptions) -> None:
        self.stream = stream
        self.options = options

    def __iter__(self) -> Iterator[Any]:
        return self.stream.iterate(self.options)

    def __len__(self) -> int:
        return self.stream.num_batches(self.options)

    def __repr__(self) -> str:
        return f"Batches(batch_size={self.options.batch_size})"


def _locally_shuffled(order: Order, wanted: BatchOptions) -> Order:
    """Rows of a buffer are shuffled: that is a window of the order, where it has none."""
    assert wanted.local_shuffle is not None
    seed = order.seed if wanted.local_seed is None else wanted.local_seed
    if order.shuffle == "no":
        return replace(order, shuffle="local", window=wanted.local_shuffle, seed=seed)
    if order.shuffle == "blocks":
        return replace(order, shuffle="window", window=wanted.local_shuffle)
    return order if order.shuffle == "full" else replace(order, window=max(order.window, wanted.local_shuffle))


def _agreed(batches: Iterator[Batch], epoch: int, agreement: Agreement, name: str) -> Iterator[Batch]:
    """As many batches as every rank has. One is fetched ahead, so that nobody waits for the others' answer."""
    end = object()
    number, coming = 0, next(batches, end)
    agreement.has(epoch, int(coming is not end), ended=coming is end)
    while coming is not end:
        batch: Any = coming
        coming = next(batches, end)
        agreement.has(epoch, number + 1 + (coming is not end), ended=coming is end)
        if not agreement.may(epoch, number):
            _logger.warning(
                f"epoch {epoch} of dataset {name!r} ends after {number:,} batches, because another rank has "
                "no more rows; rows that this rank still has are left out of it"
            )
            return
        yield batch
        number += 1
