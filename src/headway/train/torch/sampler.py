"""Samplers that give each rank its shard of the rows that the user's sampler would draw."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import torch
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from headway.core import phrases
from headway.core.errors import ConfigError
from headway.core.messages import RankAssignment
from headway.data.sharding.step_schedule import batches_of, next_step, num_steps

_logger = logging.getLogger(__name__)

_WITHOUT_MEMORY = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)

UNSHARDED = "_headway_unsharded"  # set on a prepared loader that keeps its own sampler because there is only one worker


def shard(loader: Any, place: RankAssignment, seed: int, global_workers: int | None = None) -> None:
    """Make a loader draw only this rank's shard of the rows. A loader that is already sharded is not changed.

    A single worker's shard contains all rows; its sampler only gains ``set_epoch``. With ``global_workers``, a step
    takes the rows of that many workers, whatever the actual number is.
    """
    if isinstance(loader.dataset, IterableDataset) or _is_sharded(loader):
        return
    if global_workers is not None:
        _check_batch_size(loader)
    elif place.world_size == 1 and type(loader.sampler) not in (SequentialSampler, RandomSampler):
        vars(loader)[UNSHARDED] = place, seed
        return
    _replace_samplers(loader, place, seed, global_workers)


def shard_single_worker(loader: Any) -> None:
    """Also replace a single worker's sampler, so that several workers can resume at its position."""
    if UNSHARDED in vars(loader):
        _replace_samplers(loader, *vars(loader).pop(UNSHARDED))


def _check_batch_size(loader: Any) -> None:
    if loader.batch_size is not None:
        return
    batches = loader.batch_sampler
    found = "does not batch" if batches is None else f"uses the batches of a {type(batches).__name__}"
    raise ConfigError(
        f"keep_global_batch=True makes batches larger if there are fewer workers, but this loader {found}: "
        "pass batch_size=... and a sampler to the DataLoader, or omit keep_global_batch"
    )


def _replace_samplers(loader: Any, place: RankAssignment, seed: int, global_workers: int | None = None) -> None:
    drawn = loader.batch_sampler if loader.batch_size is None and loader.batch_sampler is not None else loader.sampler
    if not hasattr(drawn, "__len__"):
        raise ConfigError(
            f"a {type(drawn).__name__} has no length, so its rows cannot be split evenly: implement __len__, or "
            "let it draw only this worker's rows and call prepare_data_loader(loader, add_dist_sampler=False)"
        )
    if loader.batch_sampler is not None and loader.batch_size is None:
        vars(loader)["batch_sampler"] = ShardedBatchSampler(loader.batch_sampler, loader.dataset, place, seed)
        return
    sharded = ShardedSampler(loader, place, seed, global_workers)
    vars(loader)["sampler"] = sharded
    if loader.batch_size is not None:
        vars(loader)["batch_sampler"] = RowBatchSampler(sharded, loader.batch_size, loader.drop_last)


def _is_sharded(loader: Any) -> bool:
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    return any(isinstance(sampler, DistributedSampler) for sampler in samplers)


class ShardedSampler(DistributedSampler[Any]):
    """This rank's rows of an epoch. Counts the epochs itself until the user's code calls ``set_epoch``."""

    def __init__(self, loader: Any, place: RankAssignment, seed: int, global_workers: int | None) -> None:
        super().__init__(loader.dataset, place.world_size, place.rank, seed=seed, drop_last=loader.drop_last)
        self._source: Sampler[int] = loader.sampler
        # An outside launcher (torchrun) may have started more workers than the scaling config says.
        self._global_batch: int = (loader.batch_size or 1) * max(place.world_size, global_workers or 0)
        self._counts_itself = True
        self._batched: bool = loader.batch_size is not None
        self.fingerprint = ""  # fingerprint of the most recently drawn order
        self._split = EvenSplit(loader.dataset, place)

    def set_epoch(self, epoch: int) -> None:
        self._counts_itself = False
        self.epoch = epoch
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(epoch)

    @property
    def starts_over(self) -> bool:
        """Whether a new process would repeat the orders of earlier epochs."""
        return self._counts_itself and self.epoch > 1 and type(self._source) is not SequentialSampler

    def resume(self, epoch: int) -> None:
        """Make this epoch the next one. A sampler with its own random state first draws the earlier epochs."""
        if type(self._source) not in _WITHOUT_MEMORY and not hasattr(self._source, "set_epoch"):
            for earlier in range(self.epoch, epoch):
                _order(self._source, self.seed + earlier)
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        if self._batched:
            return itertools.chain.from_iterable(self.batches())
        items = self._split.even_out(self._next_order())
        return iter(items[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        if self._batched:
            return sum(map(len, self._batches(range(self._num_rows))))
        return -(-self._num_rows // self.num_replicas)

    def batches(self, first: int = 0) -> Iterator[list[int]]:
        """Yield this rank's batches of the epoch, without the first ``first`` rows, which were consumed before."""
        order = self._next_order()
        if not self.drop_last:
            self._split.check(len(order) - first, self._global_batch)
        return self._batches(order, first)

    def _next_order(self) -> Sequence[Any]:
        order = _order(self._source, self.seed + self.epoch)
        self.fingerprint = _fingerprint(order)
        self.epoch += self._counts_itself
        return order

    @property
    def num_steps(self) -> int:
        return num_steps(self._num_rows, self._global_batch, self.num_replicas, drop_last=self.drop_last)

    def rows_after(self, rows: int, steps: int = 1) -> int:
        """Return the number of consumed rows after ``steps`` more steps."""
        for _ in range(steps):
            left = self._num_rows - rows
            rows += next_step(left, self._global_batch, self.num_replicas, drop_last=self.drop_last)
        return rows

    @property
    def _num_rows(self) -> int:
        return len(self._source)  # type: ignore[arg-type]

    def _batches(self, order: Sequence[int], first: int = 0) -> Iterator[list[int]]:
        size, rank = self.num_replicas, self.rank
        return batches_of(order, self._global_batch, size, rank, drop_last=self.drop_last, first=first)


class RowBatchSampler(BatchSampler):
    """A sampler of the batches of a ``ShardedSampler``: the same number on all ranks."""

    sampler: ShardedSampler

    def __iter__(self) -> Iterator[list[int]]:
        return self.sampler.batches()

    def __len__(self) -> int:
        return self.sampler.num_steps


class ShardedBatchSampler(Sampler[list[int]]):
    """A sampler of every n-th batch of the user's batch sampler. To give all ranks the same number, a few are split."""

    def __init__(self, batches: Any, dataset: Any, place: RankAssignment, seed: int) -> None:
        self.batches = batches
        self._place = place
        self._seed = seed
        self._epoch = 0
        self._split = EvenSplit(dataset, place)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if hasattr(self.batches, "set_epoch"):
            self.batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        drawn = self._split.even_out(_drawn(self.batches, self._seed + self._epoch))
        self._epoch += 1
        yield from drawn[self._place.rank :: self._place.world_size]

    def __len__(self) -> int:
        return -(-len(self.batches) // self._place.world_size)


class EvenSplit:
    """A splitter that gives all ranks the same number of steps in one loader; it warns once if rows are repeated."""

    def __init__(self, dataset: Any, place: RankAssignment) -> None:
        self._dataset = dataset
        self._place = place
        self._has_warned = False

    def even_out(self, items: Sequence[Any]) -> list[Any]:
        """Make the number of rows or batches divisible by the number of ranks: split batches in two, the last first."""
        size = self._place.world_size
        even = list(items)
        first = max(0, (len(even) - 1) // size * size)  # the beginning of the last step
        while even and len(even) % size:
            largest = max(range(len(even) - 1, first - 1, -1), key=lambda number: _rows_in(even[number]))
            if (rows := _rows_in(even[largest])) > 1:
                cut = -(-rows // 2)
                even[largest : largest + 1] = [even[largest][:cut], even[largest][cut:]]
            elif first:
                first = max(0, first - size)
            else:
                return self._repeated(even)
        return even

    def _repeated(self, items: list[Any]) -> list[Any]:
        missing = -len(items) % self._place.world_size
        kind = "batches of one row" if hasattr(items[0], "__len__") else "unbatched rows"
        self._warn(
            f"{len(items):,} {kind} cannot be split evenly, so {phrases.count(missing, 'is', 'are')} used twice in "
            f"each epoch; drop some, or use a number of workers that divides {len(items):,}"
        )
        return [*items, *itertools.islice(itertools.cycle(items), missing)]

    def check(self, num_rows: int, global_batch: int) -> None:
        """Warn if rows must be repeated, or if batches exceed the requested size."""
        size = self._place.world_size
        if 0 < num_rows < size:
            self._warn(
                f"{phrases.count(num_rows, 'row is', 'rows are')} left for a step in which each rank needs one, so "
                f"{phrases.count(size - num_rows, 'rank repeats', 'ranks repeat')} a row; use fewer workers, "
                "or drop_last=True, which drops the last rows"
            )
        elif num_rows and (steps := num_steps(num_rows, global_batch, size, drop_last=False)) * global_batch < num_rows:
            last = num_rows - (steps - 1) * global_batch
            self._warn(
                f"{num_rows:,} rows cannot be split evenly into batches of {global_batch // size}: so that each is "
                f"used once, the last step of an epoch has {last} rows; drop_last=True drops the remainder"
            )

    def _warn(self, what: str) -> None:
        if not self._has_warned and self._place.rank == 0:
            name = type(self._dataset).__name__
            _logger.warning(f"loader of a {name} on {self._place.world_size} ranks: {what}")
        self._has_warned = True


def _rows_in(item: Any) -> int:
    """Return the number of rows of a batch; anything else is one row."""
    return len(item) if isinstance(item, list | tuple | range | numpy.ndarray | torch.Tensor) else 1


def _order(source: Sampler[int], seed: int) -> Sequence[int]:
    """Return the global order of an epoch, which depends on the seed and is the same on every rank."""
    if type(source) is SequentialSampler:
        return range(len(source))
    if type(source) is RandomSampler and not source.replacement and source.num_samples == len(source.data_source):
        generator = torch.Generator()
        generator.manual_seed(seed)
        shuffled: list[int] = torch.randperm(source.num_samples, generator=generator).tolist()
        return shuffled
    return _drawn(source, seed)


def _fingerprint(order: Sequence[Any]) -> str:
    """Return a string that differs between orders."""
    if isinstance(order, range):
        return str(order)
    return hashlib.sha256(repr(list(order)).encode()).hexdigest()[:16]


def subset_fingerprint(dataset: Any) -> str:
    """Return a fingerprint of a subset's rows, because a random split without a seed differs between processes."""
    parts = []
    while isinstance(dataset, Subset):
        parts.append(_fingerprint(dataset.indices))
        dataset = dataset.dataset
    return " ".join(parts)


def _drawn(source: Any, seed: int) -> list[Any]:
    """Draw all items of a sampler with the same random numbers on every rank; then restore all random states."""
    generator = getattr(source, "generator", None)
    with _common_randomness(seed, generator):
        return list(source)


@contextlib.contextmanager
def _common_randomness(seed: int, generator: torch.Generator | None) -> Iterator[None]:
    before = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    own = generator.get_state() if generator is not None else None
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if generator is not None:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        numpy.random.set_state(before[1])
        torch.set_rng_state(before[2])
        if generator is not None and own is not None:
            generator.set_state(own)
