"""Rows, at last: counting them, looking at some, taking all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headway.core.errors import DataError
from headway.data.blocks.chunk import (
    Chunk,
    check_format,
    chunk_of,
    copied,
    empty_table,
    formatted,
    joined,
    num_rows,
    rows_of,
    sliced,
    table_of,
)
from headway.data.datasource.memory import Tables
from headway.data.datasource.parquet import no_column
from headway.data.datasource.views import read_picks
from headway.data.execution.epochs import Stream, Wanted
from headway.data.execution.progress_bar import shown
from headway.data.operations.base import Chain
from headway.data.operations.iteration import Iterating
from headway.data.operations.map_functions import Filter
from headway.data.plan import Plan
from headway.data.sharding.row_order import Picks

if TYPE_CHECKING:
    from headway.data.dataset import Dataset

ROWS = 1024  # of a chunk, when it is nobody's batch


class Consuming(Iterating):
    _plan: Plan

    def _new(self, plan: Plan) -> Dataset:
        raise NotImplementedError

    def _chunks(self, what: str) -> Iterator[Chunk]:
        """All rows, in chunks; with a bar where it takes long."""
        sizes = [size for op in self._plan.ops if (size := getattr(op, "batch_size", None))]
        wanted = Wanted(max([ROWS, *sizes]), prefetch=2)
        stream: Stream = self._stream()
        yield from shown(stream.iterate(wanted), what, self._plan.num_rows, num_rows, stream.context)

    def count(self) -> int:
        """The number of rows: known at once, unless rows are thrown away on the way.

        >>> import headway.data
        >>> headway.data.range(7).count()
        7
        """
        known = self._plan.num_rows
        return sum(num_rows(chunk) for chunk in self._chunks("counting")) if known is None else known

    def schema(self) -> pa.Schema | None:
        """The columns and their types; a row is run through the operations, where there are any."""
        if not self._plan.ops and self._plan.source.schema is not None:
            return self._plan.source.schema
        first = self._first(1) or self._nothing()
        return table_of(first).schema if first else None

    def columns(self) -> list[str] | None:
        schema = self.schema()
        return None if schema is None else list(schema.names)

    def num_blocks(self) -> int:
        return len(self._plan.source.counts)

    def size_bytes(self) -> int:
        """About how many bytes the source takes in memory."""
        return sum(map(self._plan.source.size, range(self.num_blocks())))

    def _first(self, limit: int) -> Chunk:
        """The first rows; no more is read than is needed for them."""
        found: list[Chunk] = []
        missing = limit
        stream: Stream = self._stream()
        chunks = stream.iterate(Wanted(min(ROWS, max(1, limit)), prefetch=1))
        try:
            for chunk in chunks:
                if num_rows(chunk):
                    found.append(sliced(chunk, 0, missing))
                    missing -= num_rows(found[-1])
                if missing <= 0:
                    break
        finally:
            chunks.close()  # type: ignore[attr-defined]
        return joined(found) if found else {}

    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """The first rows, as dicts."""
        return rows_of(self._first(limit)) if limit > 0 else []

    def take_all(self, limit: int | None = None) -> list[dict[str, Any]]:
        """All rows, as dicts. With ``limit``: an error if there are more."""
        rows: list[dict[str, Any]] = []
        for chunk in self._chunks("taking all"):
            rows += rows_of(chunk)
            if limit is not None and len(rows) > limit:
                raise DataError(f"the dataset has more than {limit:,} rows")
        return rows

    def take_batch(self, batch_size: int = 20, *, batch_format: str | None = "default") -> Any:
        """The first rows as one batch."""
        check_format(batch_format)
        first = self._first(batch_size)
        if not first:
            raise DataError("the dataset is empty")
        return formatted(first, batch_format)

    def show(self, limit: int = 20) -> None:
        """Print the first rows."""
        for row in self.take(limit):
            print(row)

    def probe(self, row: int) -> dict[str, Any] | list[dict[str, Any]]:
        """One row of the source through all operations, here and now: for a debugger, after an error.

        >>> import headway.data
        >>> headway.data.range(5).map(lambda row: {"id": row["id"] * 10}).probe(3)
        {'id': 30}
        """
        source = self._plan.source
        if not 0 <= row < source.num_rows:
            raise DataError(f"there is no row {row}: the source has {source.num_rows:,}")
        ends = np.cumsum(source.counts)
        piece = int(np.searchsorted(ends, row, side="right"))
        first = int(ends[piece]) - source.counts[piece]
        table = read_picks(source, Picks(np.array([piece]), np.array([row - first])), self._plan.columns)
        rows = rows_of(Chain(self._plan.ops)(copied(table), lambda number: f"row {row}"))
        return rows[0] if len(rows) == 1 else rows

    def to_arrow(self) -> pa.Table:
        """All rows as one Arrow table."""
        return table_of(self._collected())

    def _collected(self) -> Chunk:
        """All rows as one chunk; where there are none, at least the columns, as far as anybody can know them."""
        chunks = list(self._chunks("collecting"))
        if any(map(num_rows, chunks)):
            return joined(chunks)
        return next((chunk for chunk in chunks if chunk), self._nothing())

    def _nothing(self) -> Chunk:
        """No rows, with the columns that they would have: functions of the user's are not asked."""
        schema = self._plan.source.schema
        chunk = chunk_of(empty_table(schema)) if schema is not None else {}
        for op in self._plan.ops:
            if chunk and (not op.is_users or isinstance(op, Filter)):
                chunk = op.runner()(chunk, str)
            elif chunk:
                return {}
        return chunk

    def _to_arrow_limited(self, limit: int) -> pa.Table:
        return table_of(self._first(limit)) if limit else pa.table({})

    def to_pandas(self, limit: int | None = None) -> Any:
        """All rows as one pandas frame. With ``limit``: an error if there are more."""
        whole = self._collected()
        total = num_rows(whole)
        if limit is not None and total > limit:
            raise DataError(f"the dataset has {total:,} rows, more than the limit of {limit:,}")
        return formatted(whole, "pandas")

    def materialize(self) -> Dataset:
        """Run everything now, and keep the rows in memory: later, functions are not called again."""
        return self._new(Plan(Tables(tuple(self._all_tables()), "materialized")))

    def _all_tables(self) -> list[pa.Table]:
        groups = _grouped(self._chunks("materializing"), 8 << 20)
        tables = [table_of(joined(group)).combine_chunks() for group in groups]
        nothing = self._nothing()
        return tables or ([table_of(nothing)] if nothing else [])

    # aggregates over all rows

    def sum(self, on: str) -> Any:
        return self._of_all("sum", on)

    def min(self, on: str) -> Any:
        return self._of_all("min", on)

    def max(self, on: str) -> Any:
        return self._of_all("max", on)

    def mean(self, on: str) -> Any:
        return self._of_all("mean", on)

    def std(self, on: str, ddof: int = 1) -> Any:
        return self._of_all("stddev", on, ddof=ddof)

    def _of_all(self, name: str, column: str, **options: Any) -> Any:
        values = self._column(column)
        try:
            return getattr(pc, name)(values, **options).as_py()
        except pa.ArrowNotImplementedError:
            raise DataError(f"{name} cannot be computed: column {column!r} holds {values.type}") from None

    def _column(self, name: str) -> pa.ChunkedArray:
        table = self.to_arrow()
        if name not in table.column_names:
            raise no_column(name, table.column_names, "this dataset")
        return table.column(name)

    def unique(self, column: str) -> list[Any]:
        """The different values of a column, sorted."""
        found: list[Any] = self._column(column).unique().to_pylist()
        return sorted(found, key=lambda value: (value is None, value))


def _grouped(chunks: Iterator[Chunk], size: int) -> Iterator[list[Chunk]]:
    """Neighbouring chunks, until they are large enough to be worth a block."""
    from headway.data.blocks.chunk import num_bytes

    group: list[Chunk] = []
    total = 0
    for chunk in itertools.filterfalse(lambda each: not num_rows(each), chunks):
        group.append(chunk)
        total += num_bytes(chunk)
        if total >= size:
            yield group
            group, total = [], 0
    if group:
        yield group
