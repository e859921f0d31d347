"""The epochs of one consumer of a dataset: which one comes next, and how much of it has been consumed.

A training worker has one stream per dataset. Every report contains its position, and the next attempt begins there.
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
from headway.data.execution.batch_counter import LoaderProgress, NoObserver, PassObserver, counted
from headway.data.execution.block_reader import Closed
from headway.data.execution.pipeline import Batch, Pipeline, PipelineOptions, Position
from headway.data.plan import Plan
from headway.data.sharding.row_order import Order
from headway.data.sharding.step_schedule import Schedule, next_step

_logger = logging.getLogger(__name__)

NOWHERE = Position(-1, done=True)  # no epoch has begun


class LastStepAgreement(Protocol):
    """The ranks' agreement on the last step if no rank knows it in advance: see ``control.machine.epoch_end``."""

    def announce(self, epoch: int, num_batches: int, *, ended: bool) -> None:
        """Announce that this rank has at least this many batches; ``ended``: exactly this many."""

    def all_have(self, epoch: int, number: int) -> bool:
        """Whether every rank has batch ``number``; wait until this is known."""


@dataclass(frozen=True)
class ShardPlace:
    """The part of the rows that a consumer gets.

    Args:
        rank: the rank of this consumer.
        world_size: how many consumers share the rows.
        global_workers: the number of workers whose rows make up a step; None: the actual number.
        local_world_size: how many consumers share this machine.
    """

    rank: int = 0
    world_size: int = 1
    global_workers: int | None = None
    local_world_size: int = 1


@dataclass(frozen=True)
class BatchOptions:
    """The batch options of a loop. A running pipeline can be reused for options with the same ``key``.

    Args:
        batch_size: rows per batch; None: one batch per epoch.
        finish: converts the rows of a batch for the loop; runs in the pipeline's threads.
        deliver: wraps the iterator of batches in the loop's thread, for example to copy batches to a device.
        prefetch: how many batches to prepare ahead of the loop.
        drop_last: omit the last batch if it has fewer than ``batch_size`` rows.
        local_shuffle: the size of the window of rows that are shuffled together.
        local_seed: the seed of the local shuffle; None: the run's seed.
        pad_last: fill up a short last batch by repeating its rows.
        form: identifies what ``finish`` and ``deliver`` do; None: the pipeline is not reused.
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

    def finish_chunk(self, chunk: Chunk) -> Any:
        """Convert the rows of a batch for the loop."""
        if self.pad_last and self.batch_size is not None:
            chunk = padded(chunk, self.batch_size)
        return self.finish(chunk)

    def __post_init__(self) -> None:
        if self.batch_size is not None and (not isinstance(self.batch_size, int) or self.batch_size < 1):
            raise DataError(f"batch_size must be a positive number or None, got {self.batch_size!r}")
        if self.pad_last and (self.drop_last or self.batch_size is None):
            raise DataError("pad_last requires a batch_size and cannot be combined with drop_last")
        if self.prefetch < 0:
            raise DataError(f"prefetch_batches must not be negative, got {self.prefetch!r}")
        if self.local_shuffle is not None and self.local_shuffle < 1:
            raise DataError(f"local_shuffle_buffer_size must be positive, got {self.local_shuffle!r}")


@dataclass
class LoopHooks:
    """Observers of a loop over batches, and its agreement with other ranks.

    Args:
        progress: counts batches and waits.
        observer: notified of passes.
        agreement: finds the last step of all ranks; None: it is already known, or ranks are independent.
        before_first_batch: called before the loop gets each batch.
    """

    progress: LoaderProgress | None = None
    observer: PassObserver = field(default_factory=NoObserver)
    agreement: LastStepAgreement | None = None
    before_first_batch: Callable[[], None] = lambda: None


@dataclass
class EpochCursor:
    """The position of a consumer, and whether its pass continues past the end of an epoch of its function.

    A function may keep an iterator beyond the end of its own epoch. When it resumes at such a boundary, the pass is
    continued if the code keeps using this iterator (``crosses``), and counts as done if the code creates a new one.
    """

    position: Position = NOWHERE
    num_to_skip: int = 0  # passes that were completed before the epoch was resumed: they yield nothing
    running: bool = False  # whether a pass is running in this process
    at_boundary: bool = False  # whether a pass was running when an epoch of the function ended
    crosses: bool | None = None  # whether such a pass is continued in the next epoch; None: not known yet

    def coming(self) -> Position:
        """Return the position where the next iteration begins."""
        return Position(self.position.epoch + 1) if self.position.done else self.position

    @property
    def resume_position(self) -> Position:
        """The position where the next attempt begins. An open pass that will not be continued counts as done."""
        left = self.at_boundary and self.crosses is False
        return Position(self.position.epoch, done=True) if left else self.position

    @property
    def undecided(self) -> bool:
        return self.at_boundary and self.crosses is None

    def end_epoch(self) -> bool:
        """Handle the end of the function's epoch; False if it is unknown whether an open iterator is used further."""
        self.num_to_skip = 0
        if not (self.position.done or self.running) and self.crosses is False:  # the resumed epoch did not use it
            self.position = Position(self.position.epoch, done=True)
        if self.undecided:  # not used during this epoch: keep the position
            self.crosses = True
        self.at_boundary = not self.position.done
        return self.position.done or self.crosses is not None

    def leave_boundary(self, *, crossed: bool) -> None:
        if self.at_boundary:
            self.at_boundary, self.crosses = False, crossed


@dataclass
class EpochStream:
    """The epochs of one consumer over a plan.

    Args:
        plan: the source and its operations.
        order: the order of the rows, for the requested number of workers.
        place: which part of the rows this consumer gets.
        context: the limits of memory and threads.
        name: the name of the dataset, for messages.
        cursor: the position.
        training: all ranks must run the same number of steps.
        lasting: more epochs will follow, so the next one is prepared in advance.
        hooks: observers, and the agreement with other ranks.
    """

    plan: Plan
    order: Order
    place: ShardPlace = ShardPlace()
    context: DataContext = field(default_factory=DataContext.get_current)
    name: str = ""
    cursor: EpochCursor = field(default_factory=EpochCursor)
    training: bool = False
    lasting: bool = False
    hooks: LoopHooks = field(default_factory=LoopHooks)
    pipeline: Pipeline | None = None
    local_shuffle: list[Any] | None = None  # buffer size and seed of this epoch
    _pipeline_key: Hashable = None
    _next_order: Order | None = None  # the order of the next epoch if this one began in a different order

    # --- what is known before iterating ---

    @property
    def key(self) -> Hashable:
        """The key that identifies this stream for observers."""
        return "dataset", self.name

    def schedule(self, options: BatchOptions) -> Schedule:
        place, order = self.place, self.order
        if options.local_shuffle is not None:
            order = _locally_shuffled(order, options)
        size = options.batch_size or -(-max(1, order.num_rows) // place.world_size)
        global_batch = size * max(place.world_size, place.global_workers or 0)
        drop_last = options.drop_last and options.batch_size is not None and self.plan.keeps_rows
        return Schedule(order, place.rank, place.world_size, global_batch, drop_last)

    def num_batches(self, options: BatchOptions) -> int:
        """Return the number of batches in a complete epoch; raise TypeError if it cannot be known."""
        if not self.plan.keeps_rows:
            raise TypeError("the number of batches is not known in advance: an operation changes the number of rows")
        schedule = self.schedule(options)
        if self.order.num_rows < self.place.world_size:
            return sum(1 for _ in schedule.steps(0))
        return schedule.num_steps

    def check(self) -> None:
        """Raise ConfigError if there are fewer rows than ranks that all need a row in every step."""
        rows = self.order.num_rows
        if self.training and rows < self.place.world_size and self.plan.keeps_rows:
            raise ConfigError(
                f"dataset {self.name!r} has {rows:,} rows for {self.place.world_size} workers, and every worker "
                "needs one in every step; use fewer workers, or omit it from DataConfig(datasets_to_split=[...])"
            )

    @property
    def lanes(self) -> int:
        """The lanes of this epoch's order; the number of ranks if rows are dropped, as only that many can resume."""
        return self.order.lanes if self.plan.keeps_rows else self.place.world_size

    def resume(self, lanes: int, window: int, local_shuffle: list[Any] | None) -> None:
        """Finish the epoch in its original order; later epochs use the current order."""
        self._next_order, self.order = self.order, replace(self.order, lanes=lanes, window=window)
        self.local_shuffle = local_shuffle

    # --- iterating ---

    def iterate(self, options: BatchOptions) -> Generator[Any, None, None]:
        """Yield the batches of the next epoch. Leaving the loop early ends the epoch."""
        self.check()
        hooks = self.hooks
        if self.cursor.num_to_skip:
            self.cursor.num_to_skip -= 1
            hooks.observer.begin(self.key)
            hooks.observer.end(self.key)
            return
        begin = self._begin(options)
        schedule = self.schedule(options)
        pipeline = self._pipeline(options, schedule, begin)
        self.cursor.position = begin
        self.count_as_taken()
        batches = options.deliver(pipeline.epoch())
        if hooks.agreement is not None and not self.plan.keeps_rows:
            batches = _agreed(batches, begin.epoch, hooks.agreement, self.name)
        if not begin.rows and not begin.skip:
            hooks.before_first_batch()
        if hooks.progress is not None:
            batches = counted(batches, hooks.progress)
        yield from self._loop(batches, pipeline, schedule, begin.epoch)

    def _loop(
        self, batches: Iterator[Batch], pipeline: Pipeline, schedule: Schedule, epoch: int
    ) -> Generator[Any, None, None]:
        """Yield batches and record the loop's position."""
        cursor, hooks = self.cursor, self.hooks
        hooks.observer.begin(self.key)
        cursor.running = True
        try:
            for number, batch in enumerate(batches, 1):
                hooks.before_first_batch()
                cursor.position = batch.after
                yield batch.value
                self.count_as_taken()
                cursor.leave_boundary(crossed=True)
                hooks.observer.ask(self.key, last=self._is_last(schedule, epoch, number))
            hooks.before_first_batch()  # also after the last batch
        except Closed:
            raise DataError(
                f"this iteration has ended because another iteration of {self.name or 'this dataset'} was started"
            ) from None
        except BaseException:
            # This includes GeneratorExit. Either a break left the loop and ended its epoch, or an exception left it
            # and the rows were not used for training. The next report or iteration shows which of the two it was.
            cursor.leave_boundary(crossed=False)
            pipeline.close()
            raise
        finally:
            cursor.running = False
            if not cursor.position.done:
                cursor.position = Position(epoch, done=True)
                hooks.observer.end(self.key)
            if pipeline.coming == epoch:  # other ranks have no more rows: the remaining rows of this rank are dropped
                pipeline.close()
        self.count_as_taken()

    def _begin(self, options: BatchOptions) -> Position:
        """Return where this iteration begins; ConfigError if it would continue an epoch with a different shuffle."""
        if self.cursor.position.done and self._next_order is not None:
            self.close()  # batches that were made ahead are in the old order
            self.order, self._next_order = self._next_order, None
        begin = self.cursor.coming()
        now = None if options.local_shuffle is None else [options.local_shuffle, options.local_seed]
        if (begin.rows or begin.skip) and now != self.local_shuffle:
            raise ConfigError(
                f"dataset {self.name!r} is in the middle of an epoch that started with local_shuffle_buffer_size and "
                f"seed {self.local_shuffle or 'not set'}; now they are {now or 'not set'}; use the "
                "original values until that epoch has ended"
            )
        self.local_shuffle = now
        return begin

    def _pipeline(self, options: BatchOptions, schedule: Schedule, begin: Position) -> Pipeline:
        """Return the running pipeline if these are its next batches; otherwise start a new one."""
        running = self.pipeline
        if running is not None and not running.closed:
            reusable = self._pipeline_key == options.key and options.key is not None
            if reusable and (running.coming, begin.rows) == (begin.epoch, 0):
                return running
            if self.lasting:
                running.close()
        num_local, context = self.place.local_world_size, self.context
        asked = [op.num_threads for op in self.plan.ops if op.num_threads is not None]
        self._pipeline_key = options.key
        self.pipeline = Pipeline(
            self.plan,
            schedule,
            begin,
            PipelineOptions(
                batch_size=options.batch_size,
                finish=options.finish_chunk,
                prefetch=options.prefetch,
                drop_last=options.drop_last,
                budget=context.budget(num_local),
                num_threads=max(asked, default=context.threads(num_local)),
                num_spare=context.num_spare_cores(num_local),
                last_epoch=None if self.lasting else begin.epoch,
            ),
        )
        return self.pipeline

    def count_as_taken(self) -> None:
        """Count the rows that the loop has finished with; called when it requests more or reports.

        Ranks with equal counts are at the same position, even if they took different numbers of batches.
        """
        if self.hooks.progress is not None and self.place.world_size > 1:
            epoch, rows, _, done = self.cursor.position
            self.hooks.progress.taken[self.name] = (epoch + done) * self.order.num_rows + (0 if done else rows)

    def _is_last(self, schedule: Schedule, epoch: int, number: int) -> bool:
        """Whether no batch follows in this epoch, as far as is known. The result must be the same on all ranks."""
        if self.hooks.agreement is not None and not self.plan.keeps_rows:
            return not self.hooks.agreement.all_have(epoch, number)
        left = self.order.num_rows - self.cursor.position.rows
        return not next_step(left, schedule.global_batch, schedule.world_size, drop_last=schedule.drop_last)

    def close(self) -> None:
        if self.pipeline is not None:
            self.pipeline.close()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():  # modules may already have been unloaded at interpreter exit
            with contextlib.suppress(Exception):
                self.close()


class Batches:
    """The batches that ``iter_batches`` and similar methods return: ``iter()`` starts an epoch, ``len()`` is exact."""

    def __init__(self, stream: EpochStream, options: BatchOptions) -> None:
        self.stream = stream
        self.options = options

    def __iter__(self) -> Iterator[Any]:
        return self.stream.iterate(self.options)

    def __len__(self) -> int:
        return self.stream.num_batches(self.options)

    def __repr__(self) -> str:
        return f"Batches(batch_size={self.options.batch_size})"


def _locally_shuffled(order: Order, options: BatchOptions) -> Order:
    """Add a local shuffle to an order: its window has at least as many rows as the local shuffle's buffer."""
    assert options.local_shuffle is not None
    seed = order.seed if options.local_seed is None else options.local_seed
    if order.shuffle == "no":
        return replace(order, shuffle="local", window=options.local_shuffle, seed=seed)
    if order.shuffle == "blocks":
        return replace(order, shuffle="window", window=options.local_shuffle)
    return order if order.shuffle == "full" else replace(order, window=max(order.window, options.local_shuffle))


def _agreed(batches: Iterator[Batch], epoch: int, agreement: LastStepAgreement, name: str) -> Iterator[Batch]:
    """Yield the batches that every rank has. One is fetched ahead, so that ranks need not wait for each other."""
    end = object()
    number, coming = 0, next(batches, end)
    agreement.announce(epoch, int(coming is not end), ended=coming is end)
    while coming is not end:
        batch: Any = coming
        coming = next(batches, end)
        agreement.announce(epoch, number + 1 + (coming is not end), ended=coming is end)
        if not agreement.all_have(epoch, number):
            _logger.warning(
                f"epoch {epoch} of dataset {name!r} ends after {number:,} batches, because another rank has "
                "no more rows; the remaining rows of this rank are dropped"
            )
            return
        yield batch
        number += 1
