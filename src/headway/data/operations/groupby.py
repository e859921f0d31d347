"""Rows that have something in common, and what can be said of them. Arrow does it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headway.core.errors import DataError
from headway.data.blocks.chunk import chunk_of_result, copied, formatted, table_of
from headway.data.datasource.memory import Later, tables_of
from headway.data.datasource.parquet import no_column
from headway.data.operations.base import explained
from headway.data.plan import Plan

if TYPE_CHECKING:
    from headway.data.dataset import Dataset

Columns = str | Sequence[str] | None


class GroupedData:
    """What ``groupby`` gives."""

    def __init__(self, dataset: Dataset, key: str | Sequence[str] | None) -> None:
        self._dataset = dataset
        self._keys = [] if key is None else [key] if isinstance(key, str) else list(key)

    def count(self) -> Dataset:
        """How many rows each group has.

        >>> import headway.data
        >>> rows = headway.data.from_items([{"a": 1}, {"a": 2}, {"a": 1}])
        >>> rows.groupby("a").count().take_all()
        [{'a': 1, 'count()': 2}, {'a': 2, 'count()': 1}]
        """
        return self._new(lambda: self._aggregated([([], "count_all", "count()")], self._table()))

    def sum(self, on: Columns = None) -> Dataset:
        return self._over("sum", on)

    def mean(self, on: Columns = None) -> Dataset:
        return self._over("mean", on)

    def min(self, on: Columns = None) -> Dataset:
        return self._over("min", on)

    def max(self, on: Columns = None) -> Dataset:
        return self._over("max", on)

    def std(self, on: Columns = None, ddof: int = 1) -> Dataset:
        return self._over("std", on, "stddev", pc.VarianceOptions(ddof=ddof))

    def map_groups(self, fn: Callable[[Any], Any], *, batch_format: str | None = "default") -> Dataset:
        """A function from a group's rows to rows."""
        return self._new(lambda: self._mapped_groups(fn, batch_format))

    def _mapped_groups(self, fn: Callable[[Any], Any], batch_format: str | None) -> pa.Table:
        table = self._sorted(self._table())
        bounds = self._bounds(table)
        made = []
        for low, high in itertools.pairwise(bounds):
            chunk = copied(table.slice(low, high - low))
            with explained(f"map_groups({getattr(fn, '__name__', fn)})", lambda at=low: f"the group from row {at}"):  # type: ignore[misc]
                made.append(table_of(chunk_of_result(fn(formatted(chunk, batch_format)))))
        return pa.concat_tables(made, promote_options="permissive") if made else table

    # ---

    def _over(self, name: str, on: Columns, function: str | None = None, options: Any = None) -> Dataset:
        schema = self._dataset._plan.source.schema
        if schema is not None and not self._dataset._plan.ops:
            for column in [on] if isinstance(on, str) else on or []:
                if column not in schema.names:
                    raise no_column(column, schema.names, "this dataset")
        return self._new(lambda: self._over_all(name, on, function, options))

    def _over_all(self, name: str, on: Columns, function: str | None, options: Any) -> pa.Table:
        table = self._table()
        columns = [on] if isinstance(on, str) else list(on) if on is not None else self._numbers(table)
        if not columns:
            raise DataError(f"{name} needs a column of numbers, and there is none")
        return self._aggregated([(column, function or name, f"{name}({column})", options) for column in columns], table)

    def _aggregated(self, wanted: list[Any], table: pa.Table) -> pa.Table:
        for column in [entry[0] for entry in wanted if entry[0] != []]:
            if column not in table.column_names:
                raise no_column(column, table.column_names, "this dataset")
        calls = [(entry[0], entry[1], *entry[3:]) for entry in wanted]
        try:
            grouped = table.group_by(self._keys, use_threads=False).aggregate(calls)
        except pa.ArrowNotImplementedError as error:
            held = ", ".join(f"{entry[0]!r} holds {table.schema.field(entry[0]).type}" for entry in wanted if entry[0])
            raise DataError(f"{wanted[0][2]} cannot be computed: column {held} ({error})") from None
        made = {key: grouped.column(key) for key in self._keys}
        others = [name for name in grouped.column_names if name not in self._keys]
        made |= {entry[2]: grouped.column(name) for entry, name in zip(wanted, others, strict=True)}
        return self._sorted(pa.table(made))

    def _table(self) -> pa.Table:
        table = self._dataset.to_arrow()
        for key in self._keys if table.num_columns else ():
            if key not in table.column_names:
                raise no_column(key, table.column_names, "this dataset")
        return table

    def _numbers(self, table: pa.Table) -> list[str]:
        kinds = {field.name: field.type for field in table.schema}
        return [
            n for n, t in kinds.items() if n not in self._keys and (pa.types.is_integer(t) or pa.types.is_floating(t))
        ]

    def _sorted(self, table: pa.Table) -> pa.Table:
        return table.sort_by([(key, "ascending") for key in self._keys]) if self._keys else table

    def _bounds(self, table: pa.Table) -> list[int]:
        keys = list(zip(*(_comparable(table.column(key)) for key in self._keys), strict=True))
        changes = [number for number in range(1, len(keys)) if keys[number] != keys[number - 1]]
        return [0, *changes, table.num_rows]

    def _new(self, make: Callable[[], pa.Table]) -> Dataset:
        """Later, when somebody asks for it; but a column that cannot be there is missed now."""
        schema = self._dataset._plan.source.schema
        if schema is not None and not self._dataset._plan.ops:
            for key in self._keys:
                if key not in schema.names:
                    raise no_column(key, schema.names, "this dataset")
        return self._dataset._new(Plan(Later(lambda: tables_of(make()), "groupby")))


def _comparable(column: pa.ChunkedArray) -> list[Any]:
    """Its values, with one object for all NaNs: they belong together, though no two of them are equal."""
    return [math.nan if value != value else value for value in column.to_pylist()]
