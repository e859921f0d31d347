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
from headway.data.execution.epochs import Batches, BatchOptions, EpochStream, ShardPlace
from headway.data.execution.stats import summary
from headway.data.plan import Plan

ROWS = 1024  # that iter_rows fetches at a time


class Whole(Protocol):
    """The dataset that an iterator belongs to."""

    @property
    def plan(self) -> Plan: ...

    def count(self) -> int: ...

    def schema(self) -> pa.Schema | None: ...

    def materialize(self) -> Any:
        """The same dataset, in memory."""


class DataIterator:
    """What ``train.get_dataset_shard`` and ``streaming_split`` return: every iteration is the next epoch of its part.

    Args:
        dataset: the dataset that this is a part of.
        stream: which rows of it, and how far they are consumed.
        device: where batches of torch go by default, or a function that tells it; None: they stay where they are.
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
        """Batches as dicts of arrays, pandas frames or Arrow tables. They are copies, and may be changed in place.

        Args:
            prefetch_batches: how many batches are made ahead of the loop.
            batch_size: rows of a batch; None: all rows in one.
            batch_format: "numpy" or "default" (dicts of arrays), "pandas" or "pyarrow".
            drop_last: leave out a last batch that is too small.
            local_shuffle_buffer_size: shuffle rows among so many neighbours; batches keep their size.
            local_shuffle_seed: of that shuffle.
            pad_last: fill a batch that is too small by repeating its rows, for code that needs equal shapes.

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
        """Batches as dicts of tensors on this worker's device; made once, iterated every epoch.

        Args:
            prefetch_batches: how many batches are made ahead of the loop.
            batch_size: rows of a batch; None: all rows in one.
            dtypes: one for all columns, or a dict by column.
            device: where the tensors are; "auto": on the device of this worker.
            collate_fn: gets a dict of arrays and returns what the loop gets.
            drop_last: leave out a last batch that is too small.
            local_shuffle_buffer_size: shuffle rows among so many neighbours; batches keep their size.
            local_shuffle_seed: of that shuffle.
            pin_memory: put the tensors into pinned memory, where there is a GPU.
            pad_last: fill a batch that is too small by repeating its rows, for code that needs equal shapes.

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
        """Batches as dicts of TensorFlow tensors.

        Args:
            prefetch_batches: how many batches are made ahead of the loop.
            batch_size: rows of a batch; None: all rows in one.
            dtypes: one for all columns, or a dict by column.
            drop_last: leave out a last batch that is too small.
            local_shuffle_buffer_size: shuffle rows among so many neighbours; batches keep their size.
            local_shuffle_seed: of that shuffle.
            pad_last: fill a batch that is too small by repeating its rows, for code that needs equal shapes.
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
        """A torch ``IterableDataset`` of (features, label) pairs. Newer code uses ``iter_torch_batches``.

        Args:
            label_column: the column of the label; without it and ``feature_columns`` the last one.
            feature_columns: which columns are features: names, lists of names, or a dict of them.
            label_column_dtype: of the label.
            feature_column_dtypes: one for all features, or a dict by column.
            batch_size: rows of a batch.
            prefetch_batches: how many batches are made ahead of the loop.
            drop_last: leave out a last batch that is too small.
            local_shuffle_buffer_size: shuffle rows among so many neighbours; batches keep their size.
            local_shuffle_seed: of that shuffle.
            unsqueeze_label_tensor: labels of one number per row get a second axis.
            unsqueeze_feature_tensors: a single feature of one number per row gets a second axis.
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
        """A ``tf.data.Dataset`` of (features, labels).

        Args:
            feature_columns: a column, or several as a dict.
            label_columns: likewise.
            additional_columns: likewise: a third part of each element.
            prefetch_batches: how many batches are made ahead of the loop.
            batch_size: rows of a batch.
            drop_last: leave out a last batch that is too small.
            local_shuffle_buffer_size: shuffle rows among so many neighbours; batches keep their size.
            local_shuffle_seed: of that shuffle.
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
        """Row by row, as dicts. Every ``iter()`` is an epoch.

        >>> import headway.data
        >>> list(headway.data.from_items([{"x": 1}, {"x": 2}]).iter_rows())
        [{'x': 1}, {'x': 2}]
        """
        return _Rows(Batches(self.stream, BatchOptions(ROWS, rows_of, form="rows")))

    def schema(self) -> pa.Schema | None:
        """The columns and their types."""
        return self._dataset.schema()

    def materialize(self) -> Any:
        """The whole dataset, all parts of it, in memory."""
        return self._dataset.materialize()

    def count(self) -> int:
        """The rows of this part; in an epoch it may have one more or less, depending on how batches are cut."""
        rows, left = divmod(self._dataset.count(), self.stream.place.world_size)
        return rows + (self.stream.place.rank < left)

    def stats(self) -> str:
        """Statistics: rows and rates of each operation, and waiting times."""
        return summary(self.stream)

    def get_context(self) -> DataContext:
        return self.stream.context

    def get_shard(self, rank: int | None = None) -> DataIterator:
        """Return itself, for older code that takes a shard of a dataset."""
        return self

    def __repr__(self) -> str:
        place = self.stream.place
        return f"DataIterator(part {place.rank + 1} of {place.world_size} of {self._dataset!r})"


def parts(dataset: Whole, number: int) -> list[DataIterator]:
    """Iterators over ``number`` parts, for consumers in one process or in others."""
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
