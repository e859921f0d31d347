"""Groups of rows with equal keys, and their aggregates, which Arrow computes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headway.core.errors import DataError
from headway.data.blocks.chunk import chunk_of_result, copied, formatted, table_of
from headway.data.datasource.base import check_columns
from headway.data.operations.base import explained

COUNT = "count()"


@dataclass(frozen=True)
class Aggregate:
    """An aggregate: ``name`` is the user's name of it, ``function`` is Arrow's. ``on``: columns; None: all numbers."""

    name: str
    on: str | Sequence[str] | None
    function: str
    options: Any = None

    @property
    def columns(self) -> list[str] | None:
        return None if self.on is None else [self.on] if isinstance(self.on, str) else list(self.on)


def num_rows_by_group(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    return _sorted_by(_aggregated(table, keys, [([], "count_all")], [COUNT]), keys)


def aggregate_by_group(table: pa.Table, keys: Sequence[str], aggregate: Aggregate) -> pa.Table:
    columns = _numeric_columns(table, keys) if aggregate.columns is None else aggregate.columns
    if not columns:
        raise DataError(f"{aggregate.name} needs a numeric column, but the dataset has none")
    check_columns(columns, table.column_names)
    calls = [(column, aggregate.function, aggregate.options) for column in columns]
    names = [f"{aggregate.name}({column})" for column in columns]
    try:
        return _sorted_by(_aggregated(table, keys, calls, names), keys)
    except pa.ArrowNotImplementedError as error:
        types = ", ".join(f"{column!r} has type {table.schema.field(column).type}" for column in columns)
        raise DataError(f"{names[0]} cannot be computed: column {types} ({error})") from None


def _aggregated(table: pa.Table, keys: Sequence[str], calls: Sequence[Any], names: Sequence[str]) -> pa.Table:
    grouped = table.group_by(list(keys), use_threads=False).aggregate(list(calls))
    values = [name for name in grouped.column_names if name not in keys]
    made = {key: grouped.column(key) for key in keys}
    return pa.table(made | {name: grouped.column(value) for name, value in zip(names, values, strict=True)})


def mapped_groups(table: pa.Table, keys: Sequence[str], fn: Callable[[Any], Any], batch_format: str | None) -> pa.Table:
    """Call a function with each group and concatenate the results."""
    table = _sorted_by(table, keys)
    made = []
    for low, high in itertools.pairwise(_bounds(table, keys)):
        chunk = copied(table.slice(low, high - low))
        with explained(f"map_groups({getattr(fn, '__name__', fn)})", lambda at=low: f"the group from row {at}"):  # type: ignore[misc]
            made.append(table_of(chunk_of_result(fn(formatted(chunk, batch_format)))))
    return pa.concat_tables(made, promote_options="permissive") if made else table


def _numeric_columns(table: pa.Table, keys: Sequence[str]) -> list[str]:
    kinds = {field.name: field.type for field in table.schema if field.name not in keys}
    return [name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)]


def _sorted_by(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    return table.sort_by([(key, "ascending") for key in keys]) if keys else table


def _bounds(table: pa.Table, keys: Sequence[str]) -> list[int]:
    """Return the first row of each group, and the end of the last group."""
    values = list(zip(*(_comparable(table.column(key)) for key in keys), strict=True))
    changes = [number for number in range(1, len(values)) if values[number] != values[number - 1]]
    return [0, *changes, table.num_rows]


def _comparable(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column, with one object for all NaNs, so that NaNs form one group although they differ."""
    return [math.nan if value != value else value for value in column.to_pylist()]


# --- aggregates over all rows ---


def aggregate_of_column(column: pa.ChunkedArray, function: str, name: str, **options: Any) -> Any:
    """Return an aggregate of a column as a Python value. ``name`` is the name of the column."""
    try:
        return getattr(pc, function)(column, **options).as_py()
    except pa.ArrowNotImplementedError:
        raise DataError(f"{function} cannot be computed: column {name!r} has type {column.type}") from None
