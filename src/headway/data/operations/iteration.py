"""Batches and rows, one epoch at a time: what a whole dataset and a worker's part of one have in common."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from headway.data.blocks.chunk import check_format, formatted, rows_of
from headway.data.context import DataContext
from headway.data.execution.batch_iterable import Batches
from headway.data.execution.epochs import Stream, Wanted
from headway.data.execution.stats import told


class Iterating:
    """Needs a stream; every ``iter()`` of what these give is the stream's next epoch."""

    def _stream(self) -> Stream:
        raise NotImplementedError

    def _device(self) -> Any:
        """Where "auto" is."""
        return None

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
        """Batches as dicts of arrays ("numpy", "default"), "pandas" frames or "pyarrow" tables.

        They are copies: what is done to one in place is done to no other. With ``local_shuffle_buffer_size`` rows are
        shuffled among so many neighbours; batches keep their size. ``pad_last`` fills a batch that is too small with
        its own rows, once more: for code that needs every batch to have one shape.

        >>> import headway.data
        >>> [batch["id"].tolist() for batch in headway.data.range(5).iter_batches(batch_size=2)]
        [[0, 1], [2, 3], [4]]
        """
        check_format(batch_format)
        wanted = _wanted(
            prefetch_batches,
            batch_size,
            drop_last,
            local_shuffle_buffer_size,
            local_shuffle_seed,
            batch_format,
            pad_last,
        )
        return Batches(self._stream(), wanted)

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

        ``dtypes``: one for all columns, or one by column. ``collate_fn`` gets a dict of arrays and makes of it what the
        loop gets. ``pad_last``: see ``iter_batches``.

        >>> import headway.data
        >>> next(iter(headway.data.range(3).iter_torch_batches()))
        {'id': tensor([0, 1, 2])}
        """
        from headway.data.frameworks.torch import torch_batches

        wanted = _wanted(
            prefetch_batches, batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed, "torch", pad_last
        )
        chosen = self._device() if isinstance(device, str) and device == "auto" else device
        return torch_batches(
            self._stream(), wanted, dtypes=dtypes, device=chosen, collate_fn=collate_fn, pin_memory=pin_memory
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
        """Batches as dicts of TensorFlow tensors."""
        from headway.data.frameworks.tensorflow import tf_batches

        wanted = _wanted(
            prefetch_batches, batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed, "tf", pad_last
        )
        return tf_batches(self._stream(), wanted, dtypes)

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
        """A torch ``IterableDataset`` of (features, label) pairs; an older way to say ``iter_torch_batches``.

        Without ``label_column`` and ``feature_columns`` the label is the last column.
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
        """A ``tf.data.Dataset`` of (features, labels)."""
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
        return _Rows(Batches(self._stream(), Wanted(1024, rows_of, key="rows")))

    def stats(self) -> str:
        """What each operation has done, how fast, and who waited for whom."""
        stream = self._stream()
        return told(stream)

    def get_context(self) -> DataContext:
        return self._stream().context


def _wanted(
    prefetch: int,
    batch_size: int | None,
    drop_last: bool,
    shuffle: int | None,
    seed: int | None,
    batch_format: Any,
    pad_last: bool,
) -> Wanted:
    return Wanted(
        batch_size=batch_size,
        finish=_Formatted(batch_format),
        prefetch=prefetch,
        drop_last=drop_last,
        local_shuffle=shuffle,
        local_seed=seed,
        pad_last=pad_last,
        key=(batch_format, batch_size, drop_last, prefetch, shuffle, seed, pad_last),
    )


class _Formatted:
    def __init__(self, batch_format: str | None) -> None:
        self._format = batch_format

    def __call__(self, chunk: Any) -> Any:
        return formatted(chunk, self._format)


class _Rows:
    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for rows in self._batches:
            yield from rows
