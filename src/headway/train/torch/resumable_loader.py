"""A prepared loader that tracks its position and can resume there without reading earlier batches.

Its position is one number for all ranks: how many rows of the epoch's global order have been consumed. A different
number of workers can therefore continue there, in the middle of an epoch.

The sampler yields rows with their epoch, so that each fetch can be seeded by (seed, epoch, row). Augmentation is thus
the same no matter when and in which process a row is fetched.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy
import torch
from torch.utils.data import Dataset, get_worker_info

from headway.core.errors import ConfigError, StorageError
from headway.data.execution.batch_counter import NoObserver, PassObserver
from headway.train.torch.sampler import RowBatchSampler, ShardedSampler, shard_single_worker, subset_fingerprint


class Row(NamedTuple):
    epoch: int
    number: int


def follow(
    loader: Any,
    seed: int,
    before_first_batch: Callable[[], None],
    *,
    name: str = "",
    watcher: PassObserver | None = None,
) -> Cursor:
    """Make a loader from ``prepare_data_loader`` resumable."""
    shard_single_worker(loader)
    if not isinstance(loader.batch_sampler, RowBatchSampler):
        raise ConfigError(
            "train.track(loader=...) needs a loader from prepare_data_loader() that draws its batches row by row"
        )
    if not getattr(loader, "in_order", True):  # a position is a number of batches, and must say which they were
        loader.in_order = True
    cursor = Cursor(loader, name, before_first_batch, watcher or NoObserver())
    vars(loader)["batch_sampler"] = _Tagged(loader.batch_sampler, cursor)
    rows = vars(loader)["dataset"] = _Seeded(loader.dataset, seed)
    loader.collate_fn = _SeededCollate(loader.collate_fn, rows)
    if (
        loader.generator is None
    ):  # starting an epoch must not draw from the global generator; torch versions differ in this
        loader.generator = torch.Generator().manual_seed(seed)
    base = type(loader)
    own = type(base.__name__, (base,), {"__iter__": lambda self: cursor.handed_out(lambda: base.__iter__(self))})
    own.__module__, own.__qualname__ = base.__module__, base.__qualname__
    loader.__class__ = own
    return cursor


class Cursor:
    """The position of a loader: the epoch, and the batches and rows (on all ranks) of it that were yielded."""

    def __init__(self, loader: Any, name: str, before_first_batch: Callable[[], None], watcher: PassObserver) -> None:
        self.key = ("loader", name)
        self._watcher = watcher
        self.sampler: ShardedSampler = loader.batch_sampler.sampler
        self._subset = subset_fingerprint(loader.dataset)
        self._expected: str | None = None  # fingerprint of the order of the resumed epoch
        self._at_boundary = False  # whether this pass was running when an epoch of the function ended
        self._crosses: bool | None = None  # whether such a pass continues in the next epoch, as far as is known
        self._before_first_batch = before_first_batch
        self._epoch = -1  # no epoch has begun
        self._position = 0
        self._rows = 0
        self._finished = True
        self._running = False  # whether a pass is running in this process
        self.num_finished = 0  # finished epochs in this process
        self.first = 0  # rows of the next epoch that were consumed before
        self.num_to_skip = 0  # passes that the resumed epoch completed before; they are empty
        self._num_begun = 0  # passes begun in this process
        self.overlaps = False  # whether two passes ran at once and both were used

    def state(self) -> dict[str, Any]:
        left = self._at_boundary and self._crosses is False  # its iterator will not be used again
        return {
            "epoch": self._epoch,
            "position": 0 if left else self._position,
            "rows": 0 if left else self._rows,
            "finished": self._finished or left,
        }

    def saved(self) -> dict[str, Any]:
        """Return the position, and fingerprints to check when resuming that the rows are the same."""
        order = self._expected or self.sampler.fingerprint
        return {**self.state(), "crosses": self._crosses, "order": order, "subset": self._subset}

    def at_boundary(self) -> bool:
        """Handle the end of the function's epoch; False if it is unknown whether an open iterator is used further."""
        self.num_to_skip = 0
        if not (self._finished or self._running) and self._crosses is False:  # the resumed epoch did not use it
            self._position, self._rows, self._finished, self.first = 0, 0, True, 0
            self.sampler.resume(self._epoch + 1)
        if self.undecided:  # not used during this epoch: keep the position
            self._crosses = True
        self._at_boundary = not self._finished
        return self._finished or self._crosses is not None

    @property
    def undecided(self) -> bool:
        return self._at_boundary and self._crosses is None

    def resume(self, state: dict[str, Any], *, same_world: bool) -> None:
        self._epoch, self._finished = state["epoch"], state["finished"]
        self._crosses = state.get("crosses")
        self.sampler.resume(state["epoch"] + state["finished"])
        self._position, self._rows = self._reached(state, same_world=same_world)
        self.first = self._rows
        self._expected = state.get("order") if self.first else None
        if state.get("subset", self._subset) != self._subset:
            self._other_rows("its dataset is a Subset of different rows", "pass a seeded generator to random_split()")

    def _other_rows(self, what: str, remedy: str) -> None:
        raise StorageError(
            f"{self.key[1]} does not have the same rows as when the checkpoint was saved: {what}, so some rows would "
            f"be used twice in this epoch and others not at all; {remedy}, or give the run a new name"
        )

    def check_order(self) -> None:
        """Raise StorageError if the order of a resumed epoch differs from the original one."""
        expected, self._expected = self._expected, None
        if expected and expected != self.sampler.fingerprint:
            self._other_rows(
                "their number or the order of the sampler has changed",
                "make the order of the sampler depend only on set_epoch()",
            )

    def _reached(self, state: dict[str, Any], *, same_world: bool) -> tuple[int, int]:
        """Return batches and rows of the epoch. Without rows (old states), different workers restart the epoch."""
        position = state["position"]
        if "rows" in state:
            return position, state["rows"]
        return (position, self.sampler.rows_after(0, steps=position)) if same_world else (0, 0)

    def handed_out(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Yield the batches of an epoch and count them; random states are restored just before the first one."""
        self._watcher.begin(self.key)
        if self.num_to_skip:
            self.num_to_skip -= 1
            self._watcher.end(self.key)
            return
        if not self.first:
            self._before_first_batch()
            self._position = 0
        self._epoch, self._rows, self._finished, self._running = self.sampler.epoch, self.first, False, True
        self._num_begun += 1
        number = self._num_begun
        try:
            for batch in begin():
                self._before_first_batch()
                self._position += 1
                self._rows = self.sampler.rows_after(self._rows)
                yield batch
                self.overlaps |= number != self._num_begun
                if self._at_boundary:
                    self._at_boundary, self._crosses = False, True
                self._watcher.ask(self.key, last=self.sampler.rows_after(self._rows) == self._rows)
        except GeneratorExit:  # a break left the loop, which ends this pass
            if self._at_boundary:
                self._at_boundary, self._crosses = False, False
            self._finish()
            raise
        self._before_first_batch()  # also after the last batch
        self._finish()

    def _finish(self) -> None:
        self._position, self._rows, self._finished, self._running = 0, 0, True, False
        self.num_finished += 1
        self._watcher.end(self.key)


class _Tagged:
    """A batch sampler that yields rows with their epoch; its first pass omits the rows that were consumed before."""

    def __init__(self, batches: RowBatchSampler, cursor: Cursor) -> None:
        self._batches = batches
        self._cursor = cursor

    def __iter__(self) -> Iterator[list[Row]]:
        epoch = self._batches.sampler.epoch
        first, self._cursor.first = self._cursor.first, 0
        batches = self._batches.sampler.batches(first)
        self._cursor.check_order()
        for batch in batches:
            yield [Row(epoch, number) for number in batch]

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_batches"], name)


class _Seeded(Dataset[Any]):
    """Fetches every row with its own random state; in the training process, restores the previous state.

    The user's code can index it, and read and set attributes, as with the wrapped dataset.
    """

    _OWN = frozenset({"_dataset", "_seed", "_last", "__getitems__"})

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self._last = Row(0, 0)
        if hasattr(dataset, "__getitems__"):
            self.__getitems__ = self._getitems

    def __getitem__(self, row: Any) -> Any:
        if not isinstance(row, Row):  # indexed by the user's code, not the loader
            return self._dataset[row]
        return self._fetched(row, lambda: self._dataset[row.number])

    def _getitems(self, rows: list[Any]) -> Any:
        if not isinstance(rows[0], Row):
            return self._dataset.__getitems__(rows)
        return self._fetched(rows[0], lambda: self._dataset.__getitems__([row.number for row in rows]))

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if (
            name.startswith("__") or "_dataset" not in self.__dict__
        ):  # copy and pickle look up attributes before __init__
            raise AttributeError(name)
        return getattr(self.__dict__["_dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the attribute of the wrapped dataset: ``loader.dataset.transform = ...`` must take effect on rows."""
        if name in self._OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._dataset, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._dataset, name)

    def collated(self, collate: Callable[[], Any]) -> Any:
        """Collate with random numbers (to mix rows, for example) that depend only on the rows fetched last."""
        return collate() if get_worker_info() is not None else self._seeded(self._last, "collate", collate)

    def _fetched(self, row: Row, fetch: Callable[[], Any]) -> Any:
        self._last = row
        return self._seeded(row, "", fetch)

    def _seeded(self, row: Row, purpose: str, call: Callable[[], Any]) -> Any:
        text = f"{self._seed}:{row.epoch}:{row.number}{purpose}".encode()
        seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
        if get_worker_info() is not None:
            _seed_all(seed)
            return call()
        before = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
        try:
            _seed_all(seed)
            return call()
        finally:
            random.setstate(before[0])
            numpy.random.set_state(before[1])
            torch.set_rng_state(before[2])


class _SeededCollate:
    """A collate function with its own random state, like the rows."""

    def __init__(self, collate: Callable[[Any], Any], rows: _Seeded) -> None:
        self._collate = collate
        self._rows = rows

    def __call__(self, data: Any) -> Any:
        return self._rows.collated(lambda: self._collate(data))


def _seed_all(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
