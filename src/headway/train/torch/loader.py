"""A DataLoader for this worker: its share of the rows, on its device, one batch ahead.

The prepared loader is the loader it was given (same class, same settings) with two things changed: which rows it
draws, and that iterating moves the batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from headway.core.errors import ConfigError
from headway.frameworks.torch import device_of
from headway.train.torch.sharing import share
from headway.worker.pulse import Progress
from headway.worker.session import current


def prepare_data_loader(
    data_loader: DataLoader[Any],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
) -> DataLoader[Any]:
    """Give each worker its own part of every epoch, and batches on its device.

    Everything else stays as you set it: shuffling, batch size (it counts per worker), loader processes, collate,
    generator, pinning, drop_last. Every row comes once per epoch over all workers, and all workers make the same
    number of steps; a sampler of your own is drawn once for all and dealt out. Shuffling differs from epoch to epoch
    by itself, counting from the start of the process; call ``loader.sampler.set_epoch(n)`` to have it go on after a
    restart where it was. The order is drawn from the seed of ``enable_reproducibility``, not from the loader's own
    generator, whose state may differ between workers. Iterable datasets, and loaders that have a DistributedSampler
    already, keep their own way of sharing.

    With ``ScalingConfig(num_workers=(min, max), keep_global_batch=True)`` the batch size counts per worker of ``max``:
    every step takes ``batch_size × max`` rows, dealt among the workers there are, whose batches differ by at most one
    row. That needs a batch size; batches of your own are refused.

    With ``auto_transfer`` batches are copied to a CUDA device on a side stream, one ahead.
    """
    session = current("headway.train.torch.prepare_data_loader")
    if not isinstance(data_loader, DataLoader):
        raise ConfigError(f"prepare_data_loader takes a torch DataLoader, got {type(data_loader).__name__}")
    prepared: DataLoader[Any] = copy.copy(data_loader)
    if add_dist_sampler:
        share(prepared, session.place, session.extras.get("shuffle_seed", 0), session.run.global_workers)
    device = device_of(session.place)
    if move_to_device and device.type != "cpu":
        _deliver_to(prepared, device, ahead=auto_transfer)
    _count(prepared, session.progress)
    return prepared


def _count(loader: Any, progress: Progress) -> None:
    """Let the run see how many batches this rank has taken, and whether it waits for one."""
    _iterate(loader, lambda batches: _counted(iter(batches), progress))


def _counted(batches: Iterator[Any], progress: Progress) -> Iterator[Any]:
    end = object()
    while True:
        progress.in_loader = True
        try:
            batch = next(batches, end)
        finally:
            progress.in_loader = False
        if batch is end:
            return
        progress.batches += 1
        yield batch


def _deliver_to(loader: Any, device: torch.device, *, ahead: bool) -> None:
    """Make iterating this one loader move its batches."""
    deliver = _one_ahead if ahead and device.type == "cuda" else _one_by_one
    _iterate(loader, lambda batches: deliver(iter(batches), device))


def _iterate(loader: Any, through: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
    """Have what this one loader gives go through a function: by a subclass of its own class, with one object in it."""
    base = type(loader)
    own = type(base.__name__, (base,), {"__iter__": lambda self: through(base.__iter__(self))})
    own.__module__, own.__qualname__ = base.__module__, base.__qualname__
    loader.__class__ = own


def _one_by_one(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    for batch in batches:
        yield moved(batch, device)


def _one_ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Copy the next batch on a side stream while the loop works on this one."""
    side = torch.cuda.Stream(device)
    end = object()

    def fetch() -> Any:
        batch = next(batches, end)
        with torch.cuda.stream(side):
            return batch if batch is end else moved(batch, device)

    coming = fetch()
    while coming is not end:
        batch, main = coming, torch.cuda.current_stream(device)
        main.wait_stream(side)
        for tensor in tensors_in(batch):
            if tensor.is_cuda:
                tensor.record_stream(main)  # the allocator knows it only by the stream it was made on
        coming = fetch()
        yield batch


def moved(batch: Any, device: torch.device) -> Any:
    """The same batch with everything in it on the device, however deep it lies."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, Mapping):
        items = {key: moved(value, device) for key, value in batch.items()}
        if type(batch) is dict:
            return items
        other: Any = copy.copy(batch)
        other.update(items)
        return other
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(moved(value, device) for value in batch)
    return batch


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Every tensor of a batch; of an object that moved itself, those among its attributes."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_in(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors_in(value)
    elif callable(getattr(batch, "to", None)) and hasattr(batch, "__dict__"):
        yield from tensors_in(vars(batch))
