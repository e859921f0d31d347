"""Prefetching of batches to a device, one ahead of the loop that takes them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def one_by_one(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    for batch in batches:
        yield moved(batch, device)


def one_ahead(
    batches: Iterator[Any], device: torch.device, move: Callable[[Any, torch.device], Any] | None = None
) -> Iterator[Any]:
    """Copy the next batch on a side stream while the loop works on this one."""
    side = torch.cuda.Stream(device)
    end = object()

    def fetch() -> Any:
        batch = next(batches, end)
        with torch.cuda.stream(side):
            return batch if batch is end else (move or moved)(batch, device)

    coming = fetch()
    while coming is not end:
        batch, main = coming, torch.cuda.current_stream(device)
        main.wait_stream(side)
        for tensor in tensors_in(batch):
            if tensor.is_cuda:
                tensor.record_stream(main)  # otherwise the allocator knows only the side stream
        coming = fetch()
        yield batch


def moved(batch: Any, device: torch.device) -> Any:
    """Return the batch with all its tensors on the device, at any nesting depth."""
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
    """Yield every tensor of a batch; for an object with a ``to`` method, the tensors among its attributes."""
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
