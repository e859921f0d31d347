"""The DataLoader of this worker: its shard of the rows, on its device, one batch ahead.

The prepared loader is a copy of the user's loader (same class, same settings) with two changes: it draws different
rows, and iterating it moves the batches to the device.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader

from headway.core.errors import ConfigError
from headway.data.execution.batch_counter import LoaderProgress, counted
from headway.data.frameworks.device_prefetch import one_ahead, one_by_one
from headway.frameworks.torch import device_of
from headway.train.torch.sampler import UNSHARDED, RowBatchSampler, ShardedSampler, shard
from headway.worker.session import Session, current


def prepare_data_loader(
    data_loader: DataLoader[Any],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
) -> DataLoader[Any]:
    """Give each worker its own shard of every epoch, and batches on its device.

    Everything else stays as you set it: shuffling, batch size (per worker), loader processes, collate,
    generator, pinning, drop_last. Every row is used once per epoch across all workers, and all workers run the same
    number of steps; if there are fewer rows than workers, this is impossible, and rank 0 logs a warning. The rows that
    a custom sampler draws are split among the workers. The batches of a custom batch sampler are split among them as
    they are, except a few that are split in two. Iterable datasets, and loaders that already have a
    DistributedSampler, keep their own sharding.

    The shuffle differs in every epoch. Epochs are counted from the start of the process: call
    ``loader.sampler.set_epoch(n)`` to continue the previous order after a restart. The order depends on the
    seed of ``enable_reproducibility``, not on the loader's own generator, whose state may differ between workers.

    With ``ScalingConfig(num_workers=(min, max), keep_global_batch=True)``, every step takes ``batch_size × max`` rows,
    which are split among the current workers, whose batches differ by at most one row. This requires a batch size;
    custom batch samplers are rejected.

    Args:
        data_loader: The user's loader; it is left unchanged.
        add_dist_sampler: Whether to shard it.
        move_to_device: Whether to move batches to the worker's device.
        auto_transfer: Whether to copy batches to a CUDA device on a side stream, one ahead.

    Returns:
        The loader to train with.
    """
    session = current("headway.train.torch.prepare_data_loader")
    if not isinstance(data_loader, DataLoader):
        raise ConfigError(f"prepare_data_loader takes a torch DataLoader, got {type(data_loader).__name__}")
    prepared: DataLoader[Any] = copy.copy(data_loader)
    loaders = session.helper(PreparedLoaders)
    if add_dist_sampler:
        shard(prepared, session.place, loaders.shuffle_seed, session.run.options.global_workers)
    if isinstance(prepared.sampler, ShardedSampler):
        loaders.samplers.append(prepared.sampler)
    device = device_of(session.place)
    if move_to_device and device.type != "cpu":
        _deliver_to(prepared, device, ahead=auto_transfer)
    _count(prepared, session.progress)
    _watch(prepared, session)
    return prepared


USE = "_headway_use"  # on a prepared loader: its Use


@dataclass
class Use:
    """Whether a prepared loader is in the middle of a pass.

    Code that takes one batch to inspect it, and keeps the iterator, is not in the middle of a pass.
    """

    dataset: str
    can_be_tracked: bool
    num_amid: int = 0

    @property
    def is_amid(self) -> bool:
        return self.num_amid > 0

    def watched(self, batches: Iterator[Any]) -> Iterator[Any]:
        amid = False
        try:
            for number, batch in enumerate(batches, 1):
                if number == 2:
                    self.num_amid, amid = self.num_amid + 1, True
                yield batch
        finally:
            self.num_amid -= amid


@dataclass
class PreparedLoaders:
    """The prepared loaders of a session."""

    shuffle_seed: int = 0
    samplers: list[ShardedSampler] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)


def _watch(loader: Any, session: Session) -> None:
    can_be_tracked = UNSHARDED in vars(loader) or isinstance(loader.batch_sampler, RowBatchSampler)
    use = Use(type(loader.dataset).__name__, can_be_tracked)
    vars(loader)[USE] = use
    session.helper(PreparedLoaders).uses.append(use)
    _iterate(loader, lambda batches: use.watched(iter(batches)))


def _count(loader: Any, progress: LoaderProgress) -> None:
    """Count the batches that this rank takes, and record whether it is waiting for one."""
    _iterate(loader, lambda batches: counted(iter(batches), progress))


def _deliver_to(loader: Any, device: torch.device, *, ahead: bool) -> None:
    """Make this loader move its batches when it is iterated."""
    deliver = one_ahead if ahead and device.type == "cuda" else one_by_one
    _iterate(loader, lambda batches: deliver(iter(batches), device))


def _iterate(loader: Any, through: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
    """Pass the batches of this loader through a function, by changing its class to a subclass made only for it."""
    base = type(loader)
    own = type(base.__name__, (base,), {"__iter__": lambda self: through(base.__iter__(self))})
    own.__module__, own.__qualname__ = base.__module__, base.__qualname__
    loader.__class__ = own
