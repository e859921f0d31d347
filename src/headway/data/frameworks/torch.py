"""Batches as torch tensors, on the device of the worker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from headway.core.errors import DataError
from headway.data.blocks.chunk import Chunk, arrays_of
from headway.data.collate import Collate
from headway.data.execution.epochs import Batches, BatchOptions, EpochStream
from headway.data.execution.pipeline import Batch
from headway.data.frameworks.device_prefetch import moved, one_ahead

Dtypes = torch.dtype | Mapping[str, torch.dtype] | None


@dataclass(frozen=True)
class ToTensors:
    """A converter of chunks to dicts of tensors, or to what the user's collate function returns."""

    dtypes: Any = None
    collate_fn: Any = None
    pin: bool = False

    def __call__(self, chunk: Chunk) -> Any:
        batch = self._collated(chunk)
        return _pinned(batch) if self.pin else batch

    def _collated(self, chunk: Chunk) -> Any:
        if isinstance(self.collate_fn, Collate):
            return self.collate_fn(self.collate_fn.prepared(chunk))
        if self.collate_fn is not None:
            return self.collate_fn(arrays_of(chunk))
        return {name: tensor_of(name, array, self._dtype(name)) for name, array in arrays_of(chunk).items()}

    def _dtype(self, name: str) -> torch.dtype | None:
        if isinstance(self.dtypes, defaultdict):
            found: torch.dtype | None = self.dtypes[name]
            return found
        return self.dtypes.get(name) if isinstance(self.dtypes, Mapping) else self.dtypes


def tensor_of(name: str, array: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    if array.dtype == object:
        array = _of_one_shape(name, array)
    if array.dtype.kind in "USMmOV":
        raise DataError(
            f"column {name!r} contains {array.dtype.name} values, which cannot be converted to a tensor: drop it with "
            "drop_columns, convert it to numbers with map_batches, or pass a collate_fn to iter_torch_batches"
        )
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array)
    tensor = torch.from_numpy(array)
    return tensor if dtype is None else tensor.to(dtype)


def _of_one_shape(name: str, array: Any) -> Any:
    values = list(array)
    shapes = {getattr(value, "shape", None) for value in values}
    if len(shapes) == 1 and None not in shapes:
        return np.stack([np.asarray(value) for value in values])
    if None not in shapes:
        found = ", ".join(str(shape) for shape in sorted(shapes, key=str)[:3])
        raise DataError(
            f"column {name!r} contains arrays of different shapes in one batch ({found}), which cannot form one "
            "tensor: resize or pad them with map, or pass a collate_fn to iter_torch_batches"
        )
    return array


def _pinned(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.pin_memory()
    if isinstance(batch, Mapping):
        return {name: _pinned(value) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(_pinned(value) for value in batch)
    return batch


def torch_batches(
    stream: EpochStream,
    options: BatchOptions,
    *,
    dtypes: Dtypes,
    device: str | torch.device | None,
    collate_fn: Callable[[dict[str, Any]], Any] | None,
    pin_memory: bool,
) -> Batches:
    """Return batches of tensors. For a GPU, they use pinned memory and a separate stream, one ahead of the loop."""
    target = _device(device) if device not in (None, "cpu") else None
    for dtype in dtypes.values() if isinstance(dtypes, Mapping) else (dtypes,):
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise DataError(f"dtypes must be torch dtypes such as torch.float32, got {dtype!r}")
    to_gpu = target is not None and target.type == "cuda"
    finish = ToTensors(dtypes, collate_fn, pin=to_gpu or (pin_memory and torch.cuda.is_available()))

    def deliver(batches: Iterator[Batch]) -> Iterator[Batch]:
        if target is None:
            return batches
        if not to_gpu:
            return (batch._replace(value=moved(batch.value, target)) for batch in batches)
        return one_ahead(batches, target, lambda batch, to: batch._replace(value=moved(batch.value, to)))

    form = ("torch", str(dtypes), str(target), id(collate_fn), pin_memory)
    return Batches(stream, replace(options, finish=finish, deliver=deliver, form=form))


def _device(device: Any) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise DataError(f'device must be a torch device such as "cuda", "cuda:1" or "cpu", got {device!r}') from None


class Pairs(IterableDataset[Any]):
    """The torch dataset that ``to_torch`` returns: (features, label) for each batch."""

    def __init__(
        self,
        batches: Batches,
        label: str | None,
        features: Any,
        *,
        label_dtype: Any = None,
        squeeze_label: bool,
        squeeze_features: bool,
    ) -> None:
        self._batches = batches
        self._label = label
        self._features = features
        self._label_dtype = label_dtype
        self._squeeze_label = squeeze_label
        self._squeeze_features = squeeze_features

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            name = self._label_in(batch)
            label = _known(batch, name) if name is not None else None
            if label is not None and self._label_dtype is not None:
                label = label.to(self._label_dtype)
            batch = {other: column for other, column in batch.items() if other != name}
            if label is not None and not self._squeeze_label and label.ndim == 1:
                label = label.unsqueeze(1)
            yield self._chosen(batch), label

    def __len__(self) -> int:
        return len(self._batches)

    def _label_in(self, batch: dict[str, torch.Tensor]) -> str | None:
        """Return the label column: the named one, or the last unless features were chosen or it is the only one."""
        if self._label is not None or self._features is not None or len(batch) < 2:
            return self._label
        return list(batch)[-1]

    def _chosen(self, batch: dict[str, torch.Tensor]) -> Any:
        names = self._features if self._features is not None else list(batch)
        if isinstance(names, Mapping):
            return {key: self._joined(batch, columns) for key, columns in names.items()}
        if names and isinstance(names[0], list | tuple):
            return [self._joined(batch, columns) for columns in names]
        return self._joined(batch, names)

    def _joined(self, batch: dict[str, torch.Tensor], names: Any) -> torch.Tensor:
        columns = [_known(batch, name) for name in ([names] if isinstance(names, str) else names)]
        if len(columns) == 1:
            only = columns[0]
            return only if only.ndim > 1 or self._squeeze_features else only.unsqueeze(1)
        wide = [column.unsqueeze(1) if column.ndim == 1 else column for column in columns]
        kind = torch.float32 if len({column.dtype for column in wide}) > 1 else wide[0].dtype
        return torch.cat([column.to(kind) for column in wide], dim=1)


def _known(batch: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in batch:
        raise DataError(f"there is no column {name!r} in this dataset; its columns are {', '.join(batch)}")
    return batch[name]
