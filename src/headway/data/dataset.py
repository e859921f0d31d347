"""The public dataset class: its methods describe new rows (a plan) or run the plan to get rows.

A dataset is immutable and holds a plan. :mod:`headway.data.operations` transforms plans and
:mod:`headway.data.execution` runs them. The methods here check nothing and decide nothing; they connect the two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headway.core.errors import DataError
from headway.data.blocks.chunk import Chunk, check_format, formatted, num_rows, rows_of, table_of
from headway.data.context import DataContext
from headway.data.datasource.base import DataSource, check_columns, check_whole, refuse_unknown
from headway.data.datasource.memory import LazyTables, Tables, tables_of
from headway.data.execution import consumption
from headway.data.execution.epochs import Batches, EpochStream
from headway.data.execution.stats import summary
from headway.data.iterator import DataIterator, parts
from headway.data.operations import groupby, ordering, write
from headway.data.operations.base import Op, user_function
from headway.data.operations.columns import Drop, FilterBy, Rename, Select
from headway.data.operations.filter_expression import expression_of
from headway.data.operations.map_functions import AddColumn, Filter, FlatMap, MapBatches, MapRows
from headway.data.plan import Plan, Shuffling, as_source


class Dataset:
    """A description of rows, without the rows themselves. The functions of ``headway.data`` create datasets.

    Every operation returns a new dataset. Files are listed immediately, but read only when rows are requested.

    >>> import headway.data
    >>> headway.data.range(3).map(lambda row: {"id": row["id"] + 1}).take_all()
    [{'id': 1}, {'id': 2}, {'id': 3}]
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._newest: EpochStream | None = None  # the most recent iteration, for stats()

    # --- operations on rows ---

    def map(
        self,
        fn: Any,
        *,
        fn_args: Sequence[Any] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: int | tuple[int, int] | None = None,
        executor: str | None = None,
        **resources: object,
    ) -> Dataset:
        """Call a function with each row, a dict; it returns a row.

        Args:
            fn: the function; a class is instantiated once per thread, and its instances are called.
            fn_args: additional positional arguments for each call.
            fn_kwargs: additional keyword arguments for each call.
            fn_constructor_args: positional arguments for the class.
            fn_constructor_kwargs: keyword arguments for the class.
            concurrency: how many threads run it, a number or (min, max); None: all threads of the worker.
            executor: "thread" or "process"; None: whichever is measured to be faster.
            resources: options of Ray's scheduler (``num_cpus``, …); they have no effect.

        >>> import headway.data
        >>> headway.data.range(3).map(lambda row: {"square": row["id"] ** 2}).take_all()
        [{'square': 0}, {'square': 1}, {'square': 4}]
        """
        function = user_function(fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs, **resources)
        return self._then(MapRows(function=function, concurrency=concurrency, executor=executor))

    def map_batches(
        self,
        fn: Any,
        *,
        batch_size: int | str | None = None,
        batch_format: str | None = "default",
        keeps_rows: bool = True,
        fn_args: Sequence[Any] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: int | tuple[int, int] | None = None,
        executor: str | None = None,
        zero_copy_batch: bool = False,
        **resources: object,
    ) -> Dataset:
        """Call a function with batches of rows; it returns a dict of arrays, a pandas DataFrame or an Arrow table.

        Args:
            fn: the function; a class is instantiated once per thread, and its instances are called.
            batch_size: the maximum number of rows in a batch, which in training is never larger than the loop's
                batches; None: the loop's batch size.
            batch_format: what the function gets: "numpy" or "default" (dicts of arrays), "pandas" or "pyarrow".
            keeps_rows: False if the function may return a different number of rows than it gets.
            fn_args: additional positional arguments for each call.
            fn_kwargs: additional keyword arguments for each call.
            fn_constructor_args: positional arguments for the class.
            fn_constructor_kwargs: keyword arguments for the class.
            concurrency: how many threads run it, a number or (min, max); None: all threads of the worker.
            executor: "thread" or "process"; None: whichever is measured to be faster.
            zero_copy_batch: no effect; batches may always be changed in place.
            resources: options of Ray's scheduler (``num_cpus``, …); they have no effect.

        >>> import headway.data
        >>> headway.data.range(3).map_batches(lambda batch: {"id": batch["id"] * 2}).take_all()
        [{'id': 0}, {'id': 2}, {'id': 4}]
        """
        function = user_function(fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs, **resources)
        size: Any = None if batch_size == "default" else batch_size
        return self._then(
            MapBatches(
                function=function,
                batch_size=size,
                batch_format=batch_format,
                keeps=keeps_rows,
                concurrency=concurrency,
                executor=executor,
            )
        )

    def flat_map(
        self, fn: Any, *, concurrency: int | tuple[int, int] | None = None, executor: str | None = None, **options: Any
    ) -> Dataset:
        """Call a function with each row; it returns a list of rows.

        Args:
            fn: the function, or a class, as in ``map``.
            concurrency: how many threads run it, as in ``map``.
            executor: "thread" or "process", as in ``map``.
            options: ``fn_args``, ``fn_kwargs`` and the like, as in ``map``.

        >>> import headway.data
        >>> headway.data.range(2).flat_map(lambda row: [row, row]).take_all()
        [{'id': 0}, {'id': 0}, {'id': 1}, {'id': 1}]
        """
        return self._then(FlatMap(function=user_function(fn, **options), concurrency=concurrency, executor=executor))

    def filter(
        self,
        fn: Callable[[dict[str, Any]], Any] | None = None,
        expr: Any = None,
        *,
        concurrency: int | tuple[int, int] | None = None,
        executor: str | None = None,
        **options: Any,
    ) -> Dataset:
        """Keep the rows for which a function or an expression is true. Without either, keep all rows.

        Args:
            fn: gets a row, a dict.
            expr: an Arrow expression, or a string such as ``"age >= 18"``.
            concurrency: how many threads run the function, as in ``map``.
            executor: "thread" or "process", as in ``map``.
            options: ``fn_args``, ``fn_kwargs`` and the like, as in ``map``.

        >>> import headway.data
        >>> headway.data.range(4).filter(lambda row: row["id"] % 2).take_all()
        [{'id': 1}, {'id': 3}]
        """
        if fn is not None and expr is not None:
            raise DataError("filter takes a function or an expression, not both")
        if expr is not None:
            return self._then(FilterBy(expression=expression_of(expr)))
        if fn is None:
            return self._then(Rename(names={}))
        if isinstance(fn, str | pc.Expression):
            raise DataError(f"filter's function cannot be the expression {fn!r}: pass it as filter(expr=...)")
        return self._then(Filter(function=user_function(fn, **options), concurrency=concurrency, executor=executor))

    def select_columns(self, cols: str | Sequence[str], **options: object) -> Dataset:
        """Keep only these columns. Only these columns are read from files.

        >>> import headway.data
        >>> headway.data.from_items([{"a": 1, "b": 2}]).select_columns("a").take_all()
        [{'a': 1}]
        """
        refuse_unknown(options)
        return self._then(Select(columns=_names(cols)))

    def drop_columns(self, cols: str | Sequence[str], **options: object) -> Dataset:
        """Drop these columns.

        >>> import headway.data
        >>> headway.data.from_items([{"a": 1, "b": 2}]).drop_columns(["b"]).take_all()
        [{'a': 1}]
        """
        refuse_unknown(options)
        return self._then(Drop(columns=_names(cols)))

    def rename_columns(self, names: Mapping[str, str] | Sequence[str], **options: object) -> Dataset:
        """Rename columns, by a dict of old and new names or by a list of the names of all columns.

        >>> import headway.data
        >>> headway.data.range(1).rename_columns({"id": "number"}).take_all()
        [{'number': 0}]
        """
        refuse_unknown(options)
        return self._then(Rename(names=dict(names) if isinstance(names, Mapping) else tuple(names)))

    def add_column(
        self,
        col: str,
        fn: Any,
        *,
        batch_format: str | None = "pandas",
        concurrency: int | tuple[int, int] | None = None,
    ) -> Dataset:
        """Add a column that a function computes from each batch.

        Args:
            col: the name of the column.
            fn: gets a batch and returns a value for each of its rows.
            batch_format: what the function gets: "pandas", "numpy" or "default" (dicts of arrays), or "pyarrow".
            concurrency: how many threads run it, as in ``map``.

        >>> import headway.data
        >>> headway.data.range(2).add_column("twice", lambda frame: frame["id"] * 2).take_all()
        [{'id': 0, 'twice': 0}, {'id': 1, 'twice': 2}]
        """
        function = user_function(fn)
        return self._then(AddColumn(function=function, column=col, batch_format=batch_format, concurrency=concurrency))

    # --- selection and order of rows ---

    def limit(self, limit: int) -> Dataset:
        """Keep the first ``limit`` rows.

        >>> import headway.data
        >>> headway.data.range(100).limit(2).take_all()
        [{'id': 0}, {'id': 1}]
        """
        return _dataset(ordering.limited(self.plan, limit, self._first_table))

    def union(self, *others: Dataset) -> Dataset:
        """Append the rows of other datasets.

        >>> import headway.data
        >>> headway.data.range(1).union(headway.data.range(2)).take_all()
        [{'id': 0}, {'id': 0}, {'id': 1}]
        """
        return _dataset(ordering.union([each._as_source("union") for each in self._with(others, "union")]))

    def zip(self, *others: Dataset) -> Dataset:
        """Combine the columns of datasets with equally many rows, side by side; a number is appended to repeated names.

        >>> import headway.data
        >>> headway.data.range(2).zip(headway.data.range(2)).take_all()
        [{'id': 0, 'id_1': 0}, {'id': 1, 'id_1': 1}]
        """
        return _dataset(ordering.zipped([each._as_source("zip") for each in self._with(others, "zip")]))

    def random_shuffle(
        self, *, seed: int | None = None, shuffle: str = "window", window_rows: int | None = None, **options: object
    ) -> Dataset:
        """Shuffle the rows, in a different order in every epoch.

        Blocks of the source (for example row groups) are permuted, and rows are shuffled within windows.

        Args:
            seed: the seed of the order; None: the run's seed.
            shuffle: "window", which is cheap, or "full": every permutation is equally likely, but all
                rows must fit into the memory budget.
            window_rows: how many rows are shuffled together; None: about 16 MiB of rows.
            options: options of Ray's scheduler; they have no effect.
        """
        refuse_unknown(options)
        how: Any = shuffle
        return _dataset(ordering.shuffled(self.plan, how, seed, window_rows))

    def randomize_block_order(self, *, seed: int | None = None) -> Dataset:
        """Shuffle the blocks of the source, but not the rows in a block. The order differs in every epoch."""
        if seed is not None:
            check_whole("seed", seed)
        return _dataset(replace(self.plan, shuffling=Shuffling("blocks", seed)))

    def repartition(self, num_blocks: int | None = None, **options: object) -> Dataset:
        """Divide the rows into blocks of equal size. Smaller blocks are distributed and shuffled more finely.

        >>> import headway.data
        >>> headway.data.range(10).repartition(5).num_blocks()
        5
        """
        refuse_unknown(options)
        return _dataset(ordering.repartitioned(self.plan, num_blocks, self.to_arrow))

    def sort(self, key: str | Sequence[str], descending: bool | Sequence[bool] = False) -> Dataset:
        """Sort all rows by one or more columns. The rows must fit into memory.

        >>> import headway.data
        >>> headway.data.from_items([{"x": 2}, {"x": 1}]).sort("x").take_all()
        [{'x': 1}, {'x': 2}]
        """
        return _dataset(ordering.in_order_of(self.plan, key, descending, self.to_arrow))

    def groupby(self, key: str | Sequence[str] | None) -> GroupedData:
        """Group the rows that have equal values in one or more columns."""
        return GroupedData(self, key)

    # --- parts ---

    def train_test_split(
        self, test_size: int | float, *, shuffle: bool = False, seed: int | None = None, **options: object
    ) -> tuple[Dataset, Dataset]:
        """Split the rows into a training dataset and a test dataset.

        Args:
            test_size: a fraction or a number of rows.
            shuffle: choose the rows of each dataset at random, and shuffle both in every epoch.
            seed: the seed of the choice and of the shuffle.
            options: options of Ray's scheduler, without effect here.

        >>> import headway.data
        >>> train, test = headway.data.range(10).train_test_split(0.2)
        >>> (train.count(), test.count())
        (8, 2)
        """
        refuse_unknown(options)
        train, test = ordering.train_test_parts(self._as_source("train_test_split"), test_size, shuffle, seed)
        return _dataset(train), _dataset(test)

    def split(self, n: int, *, equal: bool = False, locality_hints: object = None) -> list[Dataset]:
        """Split the rows into ``n`` datasets of consecutive rows.

        Args:
            n: the number of datasets.
            equal: make all datasets equally long by dropping the few rows that are left over.
            locality_hints: no effect.

        >>> import headway.data
        >>> [part.count() for part in headway.data.range(10).split(3)]
        [4, 3, 3]
        """
        return [_dataset(part) for part in ordering.equal_parts(self._as_source("split"), n, drop_rest=equal)]

    def split_at_indices(self, indices: Sequence[int]) -> list[Dataset]:
        """Split the rows before each of these indices."""
        source = self._as_source("split")
        return [_dataset(part) for part in ordering.parts_at(source, indices, source.num_rows)]

    def split_proportionately(self, proportions: Sequence[float]) -> list[Dataset]:
        """Split off datasets with these fractions of the rows, followed by one with the remaining rows."""
        return [_dataset(part) for part in ordering.proportional_parts(self._as_source("split"), proportions)]

    def streaming_split(self, n: int, *, equal: bool = True, locality_hints: object = None) -> list[DataIterator]:
        """Split the rows into ``n`` parts for concurrent consumers, as a trainer does for its workers.

        All parts have the same number of steps, no row is dropped, and parts differ by at most one row.

        Args:
            n: the number of parts.
            equal: no effect; the parts always have the same number of steps.
            locality_hints: no effect.
        """
        return parts(self, n)

    # --- iteration ---

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
        return self._iterator().iter_batches(
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            batch_format=batch_format,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            pad_last=pad_last,
        )

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
        return self._iterator().iter_torch_batches(
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            dtypes=dtypes,
            device=device,
            collate_fn=collate_fn,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            pin_memory=pin_memory,
            pad_last=pad_last,
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
        return self._iterator().iter_tf_batches(
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            dtypes=dtypes,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            pad_last=pad_last,
        )

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
        return self._iterator().to_torch(
            label_column=label_column,
            feature_columns=feature_columns,
            label_column_dtype=label_column_dtype,
            feature_column_dtypes=feature_column_dtypes,
            batch_size=batch_size,
            prefetch_batches=prefetch_batches,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            unsqueeze_label_tensor=unsqueeze_label_tensor,
            unsqueeze_feature_tensors=unsqueeze_feature_tensors,
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
        return self._iterator().to_tf(
            feature_columns,
            label_columns,
            additional_columns=additional_columns,
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )

    def iter_rows(self) -> Iterable[dict[str, Any]]:
        return self._iterator().iter_rows()

    iter_batches.__doc__ = DataIterator.iter_batches.__doc__
    iter_torch_batches.__doc__ = DataIterator.iter_torch_batches.__doc__
    iter_tf_batches.__doc__ = DataIterator.iter_tf_batches.__doc__
    to_torch.__doc__ = DataIterator.to_torch.__doc__
    to_tf.__doc__ = DataIterator.to_tf.__doc__
    iter_rows.__doc__ = DataIterator.iter_rows.__doc__

    # --- immediate results ---

    def count(self) -> int:
        """Return the number of rows. Nothing is run unless an operation changes that number.

        >>> import headway.data
        >>> headway.data.range(7).count()
        7
        """
        known = self.plan.num_rows
        return sum(map(num_rows, self._chunks("counting"))) if known is None else known

    def schema(self) -> pa.Schema | None:
        """Return the columns and their types. If there are operations, they are applied to one row."""
        if self.plan.schema is not None:
            return self.plan.schema
        first = consumption.first_rows(self._stream(), 1) or consumption.no_rows(self.plan)
        return table_of(first).schema if first else None

    def columns(self) -> list[str] | None:
        schema = self.schema()
        return None if schema is None else list(schema.names)

    def num_blocks(self) -> int:
        return len(self.plan.source.counts)

    def size_bytes(self) -> int:
        """Return approximately how many bytes the source takes in memory."""
        return sum(map(self.plan.source.size, range(self.num_blocks())))

    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """Return the first rows as dicts."""
        check_whole("limit", limit)
        return rows_of(consumption.first_rows(self._stream(), limit)) if limit > 0 else []

    def take_all(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return all rows as dicts; raise an error if there are more than ``limit``."""
        rows: list[dict[str, Any]] = []
        for chunk in self._chunks("taking all"):
            rows += rows_of(chunk)
            if limit is not None and len(rows) > limit:
                raise DataError(f"the dataset has more than {limit:,} rows")
        return rows

    def take_batch(self, batch_size: int = 20, *, batch_format: str | None = "default") -> Any:
        """Return the first rows as one batch."""
        check_format(batch_format)
        check_whole("batch_size", batch_size)
        first = consumption.first_rows(self._stream(), batch_size)
        if not first:
            raise DataError("the dataset is empty")
        return formatted(first, batch_format)

    def show(self, limit: int = 20) -> None:
        """Print the first rows."""
        for row in self.take(limit):
            print(row)

    def probe(self, row: int) -> dict[str, Any] | list[dict[str, Any]]:
        """Apply all operations to one row of the source, in this thread, to debug an error.

        >>> import headway.data
        >>> headway.data.range(5).map(lambda row: {"id": row["id"] * 10}).probe(3)
        {'id': 30}
        """
        check_whole("row", row)
        return consumption.mapped_row(self.plan, row)

    def to_arrow(self) -> pa.Table:
        """Return all rows as one Arrow table."""
        return table_of(consumption.all_rows(self._stream()))

    def to_pandas(self, limit: int | None = None) -> Any:
        """Return all rows as one pandas DataFrame; raise an error if there are more than ``limit``."""
        rows = consumption.all_rows(self._stream())
        total = num_rows(rows)
        if limit is not None and total > limit:
            raise DataError(f"the dataset has {total:,} rows, more than the limit of {limit:,}")
        return formatted(rows, "pandas")

    def materialize(self) -> Dataset:
        """Run all operations now and keep the rows in memory, so that functions are not called again later."""
        return _dataset(Plan(Tables(tuple(self._tables()), "materialized")))

    def sum(self, on: str) -> Any:
        return groupby.aggregate_of_column(self._column(on), "sum", on)

    def min(self, on: str) -> Any:
        return groupby.aggregate_of_column(self._column(on), "min", on)

    def max(self, on: str) -> Any:
        return groupby.aggregate_of_column(self._column(on), "max", on)

    def mean(self, on: str) -> Any:
        return groupby.aggregate_of_column(self._column(on), "mean", on)

    def std(self, on: str, ddof: int = 1) -> Any:
        return groupby.aggregate_of_column(self._column(on), "stddev", on, ddof=ddof)

    def unique(self, column: str) -> list[Any]:
        """Return the distinct values of a column, sorted."""
        values: list[Any] = self._column(column).unique().to_pylist()
        return sorted(values, key=lambda value: (value is None, value))

    # --- files ---

    def write_parquet(
        self,
        path: Any,
        *,
        row_group_rows: int | None = None,
        arrow_parquet_args: Mapping[str, Any] | None = None,
        **options: object,
    ) -> None:
        """Write a directory of Parquet files. When all are complete, they replace the files of an earlier write.

        Args:
            path: a directory on this machine, or a URI in an object store.
            row_group_rows: rows per row group; None: about 8 MiB of rows, small enough to distribute and shuffle.
            arrow_parquet_args: additional arguments for ``pyarrow.parquet.write_table``.
            options: options of Ray's scheduler, without effect here.
        """
        refuse_unknown(options)
        write.write_parquet(self._chunks("writing parquet"), path, row_group_rows, arrow_parquet_args or {})

    def write_csv(self, path: Any, **options: object) -> None:
        """Write a directory of CSV files, which replace the files of an earlier write."""
        refuse_unknown(options)
        write.write_csv(self._chunks("writing csv"), path)

    def write_json(self, path: Any, **options: object) -> None:
        """Write a directory of JSON Lines files, which replace the files of an earlier write."""
        refuse_unknown(options)
        write.write_json(self._chunks("writing json"), path)

    # --- statistics and compatibility ---

    def stats(self) -> str:
        """Describe what each operation of the last iteration did, how fast it was, and what waited for what."""
        return summary(self._newest) if self._newest is not None else "nothing has been read yet"

    def get_context(self) -> DataContext:
        return DataContext.get_current()

    def pipeline(self, *, length: int | None = None) -> Dataset:
        """Return the dataset unchanged, for compatibility: all datasets stream."""
        return _dataset(self.plan)

    def window(self, *, blocks_per_window: int | None = None, bytes_per_window: int | None = None) -> Dataset:
        """Return the dataset unchanged, for compatibility: all datasets stream."""
        return _dataset(self.plan)

    def repeat(self, times: int | None = None) -> Dataset:
        """Return the dataset unchanged, for compatibility: every iteration is an epoch."""
        return _dataset(self.plan)

    def __iter__(self) -> Any:
        raise TypeError("a dataset is not iterable: use iter_rows(), iter_batches() or iter_torch_batches()")

    def __len__(self) -> int:
        raise TypeError("a dataset has no len(): use count()")

    def __repr__(self) -> str:
        rows = self.plan.num_rows if self.plan.source.is_known else None
        ops = "".join(f" → {op.title}" for op in self.plan.ops)
        how = "" if self.plan.shuffling.how == "no" else ", shuffled"
        return f"Dataset({self.plan.source.name}{ops}, {'?' if rows is None else f'{rows:,}'} rows{how})"

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "_newest": None}

    # --- from plans to execution ---

    def _then(self, op: Op) -> Dataset:
        return _dataset(self.plan.then(op))

    def _stream(self) -> EpochStream:
        self._newest = EpochStream(self.plan, self.plan.order(1), context=DataContext.get_current())
        return self._newest

    def _iterator(self) -> DataIterator:
        return DataIterator(self, self._stream())

    def _chunks(self, title: str) -> Iterator[Chunk]:
        return consumption.chunks(self._stream(), title)

    def _tables(self) -> Sequence[pa.Table]:
        return consumption.all_tables(self._stream())

    def _first_table(self, limit: int) -> pa.Table:
        return table_of(consumption.first_rows(self._stream(), limit)) if limit else pa.table({})

    def _with(self, others: Sequence[Any], title: str) -> Sequence[Dataset]:
        for other in others:
            if not isinstance(other, Dataset):
                raise DataError(f"{title} takes datasets, got {other!r}")
        return (self, *others)

    def _as_source(self, title: str) -> DataSource:
        return as_source(self.plan, title, self._tables)

    def _column(self, name: str) -> pa.ChunkedArray:
        table = self.to_arrow()
        check_columns([name], table.column_names)
        return table.column(name)


class GroupedData:
    """Grouped rows, as ``Dataset.groupby`` returns them. Results are computed when their rows are requested."""

    def __init__(self, dataset: Dataset, key: str | Sequence[str] | None) -> None:
        self._dataset = dataset
        self._keys = [] if key is None else list(_names(key))

    def count(self) -> Dataset:
        """Count the rows of each group.

        >>> import headway.data
        >>> rows = headway.data.from_items([{"a": 1}, {"a": 2}, {"a": 1}])
        >>> rows.groupby("a").count().take_all()
        [{'a': 1, 'count()': 2}, {'a': 2, 'count()': 1}]
        """
        return self._later(lambda table: groupby.num_rows_by_group(table, self._keys))

    def sum(self, on: str | Sequence[str] | None = None) -> Dataset:
        return self._aggregate(groupby.Aggregate("sum", on, "sum"))

    def mean(self, on: str | Sequence[str] | None = None) -> Dataset:
        return self._aggregate(groupby.Aggregate("mean", on, "mean"))

    def min(self, on: str | Sequence[str] | None = None) -> Dataset:
        return self._aggregate(groupby.Aggregate("min", on, "min"))

    def max(self, on: str | Sequence[str] | None = None) -> Dataset:
        return self._aggregate(groupby.Aggregate("max", on, "max"))

    def std(self, on: str | Sequence[str] | None = None, ddof: int = 1) -> Dataset:
        return self._aggregate(groupby.Aggregate("std", on, "stddev", pc.VarianceOptions(ddof=ddof)))

    def map_groups(self, fn: Callable[[Any], Any], *, batch_format: str | None = "default") -> Dataset:
        """Call a function with the rows of each group; the function returns rows."""
        return self._later(lambda table: groupby.mapped_groups(table, self._keys, fn, batch_format))

    def _aggregate(self, aggregate: groupby.Aggregate) -> Dataset:
        compute = functools.partial(groupby.aggregate_by_group, keys=self._keys, aggregate=aggregate)
        return self._later(compute, aggregate.columns or ())

    def _later(self, compute: Callable[[pa.Table], pa.Table], columns: Sequence[str] = ()) -> Dataset:
        """Return a dataset that is computed when needed; unknown columns are rejected immediately."""
        schema = self._dataset.plan.schema
        if schema is not None:
            check_columns([*columns, *self._keys], schema.names)

        def make() -> Sequence[pa.Table]:
            table = self._dataset.to_arrow()
            if table.num_columns:
                check_columns(self._keys, table.column_names)
            return tables_of(compute(table))

        return _dataset(Plan(LazyTables(make, "groupby")))


def _dataset(plan: Plan) -> Dataset:
    plan.check()
    return Dataset(plan)


def _names(columns: str | Sequence[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)
