"""The iterator over one part of a dataset: its batches and rows in NumPy, pandas, Arrow, torch or TensorFlow."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa

from headway.core.errors import DataError
from headway.data.blocks.chunk import check_format, formatted, rows_of
from headway.data.context import DataContext
from headway.data.datasource.base import check_whole
from headway.data.execution.epochs import Batches, BatchOptions, EpochStream, ShardPlace
from headway.data.execution.stats import summary
from headway.data.plan import Plan

ROWS = 1024  # rows that iter_rows fetches at a time


class Whole(Protocol):
    """The dataset that an iterator belongs to."""

    @property
    def plan(self) -> Plan: ...

    def count(self) -> int: ...

    def schema(self) -> pa.Schema | None: ...

    def materialize(self) -> Any:
        """Return the same dataset, in memory."""


class DataIterator:
    """The batches and rows of one part of a dataset, from ``train.get_dataset_shard`` or ``streaming_split``.

    Each new iteration over the batches or rows is the part's next epoch.

    Args:
        dataset: the complete dataset.
        stream: the rows of this part, and how many of them have been consumed.
        device: the default device of torch batches, or a function that returns it; None: batches are not moved.
    """

    def __init__(self, dataset: Whole, stream: EpochStream, device: Any = None) -> None:
        self._dataset = dataset
        self.stream = stream
        self._auto = device

    def iter_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        batch_format: str | None = "default",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        pad_last: bool = False,
    ) -> Batches:
        """Return batches as dicts of arrays, pandas DataFrames or Arrow tables, which may be changed in place.

        Args:
            prefetch_batches: how many batches to prepare ahead of the loop.
            batch_size: rows per batch; None: all rows in one batch.
            batch_format: "numpy" or "default" (dicts of arrays), "pandas" or "pyarrow".
            drop_last: omit the last batch if it has fewer than ``batch_size`` rows.
            local_shuffle_buffer_size: shuffle rows within windows of this many rows; batches keep their size.
            local_shuffle_seed: the seed of that shuffle.
            pad_last: fill up a short last batch by repeating its rows, for code that needs equal shapes.

        >>> import headway.data
        >>> [batch["id"].tolist() for batch in headway.data.range(5).iter_batches(batch_size=2)]
        [[0, 1], [2, 3], [4]]
        """
        check_format(batch_format)
        options = BatchOptions(
            batch_size=batch_size,
            finish=functools.partial(formatted, batch_format=batch_format),
            prefetch=prefetch_batches,
            drop_last=drop_last,
            local_shuffle=local_shuffle_buffer_size,
            local_seed=local_shuffle_seed,
            pad_last=pad_last,
            form=("arrays", batch_format),
        )
        return Batches(self.stream, options)

    def iter_torch_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: Any = None,
        device: Any = "auto",
        collate_fn: Callable[[dict[str, Any]], Any] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        pin_memory: bool = False,
        pad_last: bool = False,
    ) -> Batches:
        """Return batches as dicts of tensors on this worker's device.

        Call this once, and iterate over the result in every epoch.

        Args:
            prefetch_batches: how many batches to prepare ahead of the loop.
            batch_size: rows per batch; None: all rows in one batch.
            dtypes: one dtype for all columns, or a dict with a dtype per column.
            device: the device of the tensors; "auto": this worker's device.
            collate_fn: gets a dict of arrays and returns the batch for the loop.
            drop_last: omit the last batch if it has fewer than ``batch_size`` rows.
            local_shuffle_buffer_size: shuffle rows within windows of this many rows; batches keep their size.
            local_shuffle_seed: the seed of that shuffle.
            pin_memory: put the tensors into pinned memory if there is a GPU.
            pad_last: fill up a short last batch by repeating its rows, for code that needs equal shapes.

        >>> import headway.data
        >>> next(iter(headway.data.range(3).iter_torch_batches()))
        {'id': tensor([0, 1, 2])}
        """
        from headway.data.frameworks.torch import torch_batches

        if isinstance(device, str) and device == "auto":
            device = self._auto() if callable(self._auto) else self._auto
        options = BatchOptions(
            batch_size=batch_size,
            prefetch=prefetch_batches,
            drop_last=drop_last,
            local_shuffle=local_shuffle_buffer_size,
            local_seed=local_shuffle_seed,
            pad_last=pad_last,
        )
        return torch_batches(
            self.stream, options, dtypes=dtypes, device=device, collate_fn=collate_fn, pin_memory=pin_memory
        )

    def iter_tf_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: Any = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        pad_last: bool = False,
    ) -> Batches:
        """Return batches as dicts of TensorFlow tensors.

        Args:
            prefetch_batches: how many batches to prepare ahead of the loop.
            batch_size: rows per batch; None: all rows in one batch.
            dtypes: one dtype for all columns, or a dict with a dtype per column.
            drop_last: omit the last batch if it has fewer than ``batch_size`` rows.
            local_shuffle_buffer_size: shuffle rows within windows of this many rows; batches keep their size.
            local_shuffle_seed: the seed of that shuffle.
            pad_last: fill up a short last batch by repeating its rows, for code that needs equal shapes.
        """
        from headway.data.frameworks.tensorflow import tf_batches

        options = BatchOptions(
            batch_size=batch_size,
            prefetch=prefetch_batches,
            drop_last=drop_last,
            local_shuffle=local_shuffle_buffer_size,
            local_seed=local_shuffle_seed,
            pad_last=pad_last,
        )
        return tf_batches(self.stream, options, dtypes)

    def to_torch(
        self,
        *,
        label_column: str | None = None,
        feature_columns: Any = None,
        label_column_dtype: Any = None,
        feature_column_dtypes: Any = None,
        batch_size: int = 1,
        prefetch_batches: int = 1,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        unsqueeze_label_tensor: bool = True,
        unsqueeze_feature_tensors: bool = True,
    ) -> Any:
        """Return a torch ``IterableDataset`` of (features, label) pairs. New code should use ``iter_torch_batches``.

        Args:
            label_column: the label column; the last column if neither it nor ``feature_columns`` is given.
            feature_columns: the feature columns: names, lists of names, or a dict of them.
            label_column_dtype: the dtype of the label.
            feature_column_dtypes: one dtype for all features, or a dict with a dtype per column.
            batch_size: rows per batch.
            prefetch_batches: how many batches to prepare ahead of the loop.
            drop_last: omit the last batch if it has fewer than ``batch_size`` rows.
            local_shuffle_buffer_size: shuffle rows within windows of this many rows; batches keep their size.
            local_shuffle_seed: the seed of that shuffle.
            unsqueeze_label_tensor: add a second axis to labels with one number per row.
            unsqueeze_feature_tensors: add a second axis to a single feature with one number per row.
        """
        from headway.data.frameworks.torch import Pairs

        by_name = isinstance(feature_column_dtypes, Mapping)
        dtypes: Any = dict(feature_column_dtypes) if by_name else collections.defaultdict(lambda: feature_column_dtypes)
        if label_column is not None:
            dtypes[label_column] = label_column_dtype
        batches = self.iter_torch_batches(
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            dtypes=dtypes,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )
        return Pairs(
            batches,
            label_column,
            feature_columns,
            label_dtype=label_column_dtype,
            squeeze_label=not unsqueeze_label_tensor,
            squeeze_features=not unsqueeze_feature_tensors,
        )

    def to_tf(
        self,
        feature_columns: str | list[str],
        label_columns: str | list[str],
        *,
        additional_columns: str | list[str] | None = None,
        prefetch_batches: int = 1,
        batch_size: int = 1,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Any:
        """Return a ``tf.data.Dataset`` of (features, labels).

        Args:
            feature_columns: one column, or a list of columns, which become a dict.
            label_columns: one column or a list, as for features.
            additional_columns: one column or a list, as for features; they become a third item of each element.
            prefetch_batches: how many batches to prepare ahead of the loop.
            batch_size: rows per batch.
            drop_last: omit the last batch if it has fewer than ``batch_size`` rows.
            local_shuffle_buffer_size: shuffle rows within windows of this many rows; batches keep their size.
            local_shuffle_seed: the seed of that shuffle.
        """
        from headway.data.frameworks.tensorflow import tf_dataset

        batches = self.iter_batches(
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )
        return tf_dataset(batches, feature_columns, label_columns, additional_columns)

    def iter_rows(self) -> Iterable[dict[str, Any]]:
        """Return the rows as dicts. Each ``iter()`` starts the next epoch.

        >>> import headway.data
        >>> list(headway.data.from_items([{"x": 1}, {"x": 2}]).iter_rows())
        [{'x': 1}, {'x': 2}]
        """
        return _Rows(Batches(self.stream, BatchOptions(ROWS, rows_of, form="rows")))

    def schema(self) -> pa.Schema | None:
        """Return the columns and their types."""
        return self._dataset.schema()

    def materialize(self) -> Any:
        """Return the complete dataset with all its parts, in memory."""
        return self._dataset.materialize()

    def count(self) -> int:
        """Count the rows of this part; an epoch may have one more or one fewer, depending on the batches."""
        rows, left = divmod(self._dataset.count(), self.stream.place.world_size)
        return rows + (self.stream.place.rank < left)

    def stats(self) -> str:
        """Return statistics: rows and rates of each operation, and waiting times."""
        return summary(self.stream)

    def get_context(self) -> DataContext:
        return self.stream.context

    def get_shard(self, rank: int | None = None) -> DataIterator:
        """Return this iterator, for older code that asks a dataset for its shard."""
        return self

    def __repr__(self) -> str:
        place = self.stream.place
        return f"DataIterator(part {place.rank + 1} of {place.world_size} of {self._dataset!r})"


def parts(dataset: Whole, number: int) -> list[DataIterator]:
    """Return iterators over ``number`` parts, for consumers in this process or in others."""
    check_whole("n", number)
    if number < 1:
        raise DataError(f"streaming_split needs a positive number of parts, got {number}")
    plan = dataset.plan
    order = plan.order(number)
    streams = [
        EpochStream(plan, order, ShardPlace(rank, number, local_world_size=number), name="split")
        for rank in range(number)
    ]
    return [DataIterator(dataset, stream) for stream in streams]


class _Rows:
    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for rows in self._batches:
            yield from rows
