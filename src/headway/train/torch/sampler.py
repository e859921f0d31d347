"""Samplers that give each rank its shard of what the user's own sampler would draw."""

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

LONE = "_headway_lone"  # on a loader that was left alone because its worker is


def share(loader: Any, place: RankAssignment, seed: int, global_workers: int | None = None) -> None:
    """Replace what a loader draws by this rank's share of it. What shares already is left alone.

    A single worker's share is everything; it only gains ``set_epoch``. With ``global_workers`` a step takes the rows
    of so many workers, however many there are.
    """
    if isinstance(loader.dataset, IterableDataset) or _shares_already(loader):
        return
    if global_workers is not None:
        _check_batch_size(loader)
    elif place.world_size == 1 and type(loader.sampler) not in (SequentialSampler, RandomSampler):
        vars(loader)[LONE] = place, seed
        return
    _deal_out(loader, place, seed, global_workers)


def share_lone(loader: Any) -> None:
    """Have a single worker's own sampler drawn as several workers would, so that they can go on where it is."""
    if LONE in vars(loader):
        _deal_out(loader, *vars(loader).pop(LONE))


def _check_batch_size(loader: Any) -> None:
    if loader.batch_size is not None:
        return
    batches = loader.batch_sampler
    found = "does not batch at all" if batches is None else f"has the batches of a {type(batches).__name__}"
    raise ConfigError(
        f"keep_global_batch=True makes batches larger where there are fewer workers, and this loader {found}: "
        "give the DataLoader batch_size=... and a sampler, or leave keep_global_batch out"
    )


def _deal_out(loader: Any, place: RankAssignment, seed: int, global_workers: int | None = None) -> None:
    drawn = loader.batch_sampler if loader.batch_size is None and loader.batch_sampler is not None else loader.sampler
    if not hasattr(drawn, "__len__"):
        raise ConfigError(
            f"a {type(drawn).__name__} has no length, so its rows cannot be split evenly: give it a __len__, or "
            "let it draw each worker's own rows and call prepare_data_loader(loader, add_dist_sampler=False)"
        )
    if loader.batch_sampler is not None and loader.batch_size is None:
        vars(loader)["batch_sampler"] = SharedBatches(loader.batch_sampler, loader.dataset, place, seed)
        return
    dealt = DealtSampler(loader, place, seed, global_workers)
    vars(loader)["sampler"] = dealt
    if loader.batch_size is not None:
        vars(loader)["batch_sampler"] = DealtBatches(dealt, loader.batch_size, loader.drop_last)


def _shares_already(loader: Any) -> bool:
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    return any(isinstance(sampler, DistributedSampler) for sampler in samplers)


class DealtSampler(DistributedSampler[Any]):
    """This rank's rows of an epoch. Epochs count by themselves until somebody calls ``set_epoch``."""

    def __init__(self, loader: Any, place: RankAssignment, seed: int, global_workers: int | None) -> None:
        super().__init__(loader.dataset, place.world_size, place.rank, seed=seed, drop_last=loader.drop_last)
        self._source: Sampler[int] = loader.sampler
        # A launcher outside of us may have started more workers than we would have.
        self._global_batch: int = (loader.batch_size or 1) * max(place.world_size, global_workers or 0)
        self._counts_itself = True
        self._batched: bool = loader.batch_size is not None
        self.fingerprint = ""  # of the order that was drawn last
        self._evenness = Evenness(loader.dataset, place)

    def set_epoch(self, epoch: int) -> None:
        self._counts_itself = False
        self.epoch = epoch
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(epoch)

    @property
    def starts_over(self) -> bool:
        """Whether, in a new process, it would begin with orders that it has had already."""
        return self._counts_itself and self.epoch > 1 and type(self._source) is not SequentialSampler

    def go_on(self, epoch: int) -> None:
        """This epoch is the next. A sampler with randomness of its own draws what it has drawn before."""
        if type(self._source) not in _WITHOUT_MEMORY and not hasattr(self._source, "set_epoch"):
            for earlier in range(self.epoch, epoch):
                _order(self._source, self.seed + earlier)
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        if self._batched:
            return itertools.chain.from_iterable(self.batches())
        items = self._evenness.made_even(self._coming())
        return iter(items[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        if self._batched:
            return sum(map(len, self._dealt(range(self._num_rows))))
        return -(-self._num_rows // self.num_replicas)

    def batches(self, first: int = 0) -> Iterator[list[int]]:
        """This rank's batches of the epoch; ``first`` rows of its order have been consumed before, by whomever."""
        order = self._coming()
        if not self.drop_last:
            self._evenness.check(len(order) - first, self._global_batch)
        return self._dealt(order, first)

    def _coming(self) -> Sequence[Any]:
        order = _order(self._source, self.seed + self.epoch)
        self.fingerprint = _fingerprint(order)
        self.epoch += self._counts_itself
        return order

    @property
    def num_steps(self) -> int:
        return num_steps(self._num_rows, self._global_batch, self.num_replicas, drop_last=self.drop_last)

    def rows_after(self, rows: int, steps: int = 1) -> int:
        """How many rows of the order are consumed after so many steps more."""
        for _ in range(steps):
            left = self._num_rows - rows
            rows += next_step(left, self._global_batch, self.num_replicas, drop_last=self.drop_last)
        return rows

    @property
    def _num_rows(self) -> int:
        return len(self._source)  # type: ignore[arg-type]

    def _dealt(self, order: Sequence[int], first: int = 0) -> Iterator[list[int]]:
        size, rank = self.num_replicas, self.rank
        return batches_of(order, self._global_batch, size, rank, drop_last=self.drop_last, first=first)


class DealtBatches(BatchSampler):
    """A rank's rows in the batches that they are dealt in: as many on all ranks."""

    sampler: DealtSampler

    def __iter__(self) -> Iterator[list[int]]:
        return self.sampler.batches()

    def __len__(self) -> int:
        return self.sampler.num_steps


class SharedBatches(Sampler[list[int]]):
    """Every n-th of the user's own batches. A few are cut in two where the ranks would not all have as many."""

    def __init__(self, batches: Any, dataset: Any, place: RankAssignment, seed: int) -> None:
        self.batches = batches
        self._place = place
        self._seed = seed
        self._epoch = 0
        self._evenness = Evenness(dataset, place)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if hasattr(self.batches, "set_epoch"):
            self.batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        drawn = self._evenness.made_even(_drawn(self.batches, self._seed + self._epoch))
        self._epoch += 1
        yield from drawn[self._place.rank :: self._place.world_size]

    def __len__(self) -> int:
        return -(-len(self.batches) // self._place.world_size)


class Evenness:
    """All ranks make as many steps: what that takes for one loader, and a sentence where rows have to come twice."""

    def __init__(self, dataset: Any, place: RankAssignment) -> None:
        self._dataset = dataset
        self._place = place
        self._told = False

    def made_even(self, items: Sequence[Any]) -> list[Any]:
        """These rows or batches, as many for every rank: batches are cut in two, the last ones first."""
        size = self._place.world_size
        even = list(items)
        first = max(0, (len(even) - 1) // size * size)  # where the last step begins
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
        kind = "batches of one row" if hasattr(items[0], "__len__") else "rows that are not batched"
        self._tell(
            f"{len(items):,} {kind} cannot be split evenly, so {missing} come twice in each epoch; leave some "
            "out, or use a number of workers that divides them"
        )
        return [*items, *itertools.islice(itertools.cycle(items), missing)]

    def check(self, num_rows: int, global_batch: int) -> None:
        """Say so where rows have to come twice, or batches become larger than they were asked to be."""
        size = self._place.world_size
        if 0 < num_rows < size:
            self._tell(
                f"{phrases.count(num_rows, 'row is', 'rows are')} left for a step in which each rank needs one, so "
                f"rows go to {size - num_rows} ranks once more; use fewer workers, "
                "or drop_last=True, which leaves them out"
            )
        elif num_rows and (steps := num_steps(num_rows, global_batch, size, drop_last=False)) * global_batch < num_rows:
            last = num_rows - (steps - 1) * global_batch
            self._tell(
                f"{num_rows:,} rows cannot be split evenly in batches of {global_batch // size}: so that each comes "
                f"once, the last step of an epoch has {last} rows; drop_last=True leaves out what is too much"
            )

    def _tell(self, what: str) -> None:
        if not self._told and self._place.rank == 0:
            name = type(self._dataset).__name__
            _logger.warning(f"loader of a {name} on {self._place.world_size} ranks: {what}")
        self._told = True


def _rows_in(item: Any) -> int:
    """Of a batch; a row by itself is one."""
    return len(item) if isinstance(item, list | tuple | range | numpy.ndarray | torch.Tensor) else 1


def _order(source: Sampler[int], seed: int) -> Sequence[int]:
    """The global order of an epoch: a function of the seed, the same on every rank."""
    if type(source) is SequentialSampler:
        return range(len(source))
    if type(source) is RandomSampler and not source.replacement and source.num_samples == len(source.data_source):
        generator = torch.Generator()
        generator.manual_seed(seed)
        shuffled: list[int] = torch.randperm(source.num_samples, generator=generator).tolist()
        return shuffled
    return _drawn(source, seed)


def _fingerprint(order: Sequence[Any]) -> str:
    """What differs where another order is drawn."""
    if isinstance(order, range):
        return str(order)
    return hashlib.sha256(repr(list(order)).encode()).hexdigest()[:16]


def subset_fingerprint(dataset: Any) -> str:
    """Which rows of a larger dataset this one has: a random split without a seed has others in each process."""
    parts = []
    while isinstance(dataset, Subset):
        parts.append(_fingerprint(dataset.indices))
        dataset = dataset.dataset
    return " ".join(parts)


def _drawn(source: Any, seed: int) -> list[Any]:
    """All that a sampler would give, drawn with randomness that is the same on every rank and disturbs nobody."""
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
