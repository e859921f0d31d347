"""Rows in memory: numbers, Arrow tables, tables computed on demand, and torch datasets."""

from __future__ import annotations

import functools
import itertools
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headway.core.errors import DataError
from headway.data.blocks.chunk import chunk_of_rows, table_of
from headway.data.datasource.base import Columns, DataSource, digest, select

ROWS = 1 << 16  # maximum rows of a piece
BYTES = 8 << 20


@dataclass(frozen=True)
class Numbers(DataSource):
    """The numbers below ``stop``, or tensors of a given shape that are filled with them."""

    stop: int
    column: str = "id"
    shape: tuple[int, ...] | None = None
    rows: int = ROWS

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        return cut(self.stop, self.rows)

    @property
    def schema(self) -> pa.Schema:
        return self.read_rows(0, 0).schema

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        first = piece * self.rows
        return select(self.read_rows(first, first + self.counts[piece]), columns)

    def read_rows(self, first: int, stop: int) -> pa.Table:
        numbers = np.arange(first, stop, dtype=np.int64)
        if self.shape is not None:
            numbers = np.broadcast_to(numbers.reshape(-1, *(1 for _ in self.shape)), (len(numbers), *self.shape))
        return table_of({self.column: np.ascontiguousarray(numbers)})

    def size(self, piece: int) -> int:
        return self.counts[piece] * 8 * int(np.prod(self.shape or (1,)))

    @property
    def name(self) -> str:
        return f"range({self.stop:,})"

    def fingerprint(self) -> str:
        return digest("range", self.stop, self.column, self.shape)


@dataclass(frozen=True)
class Tables(DataSource):
    """Arrow tables; each table is a piece."""

    tables: tuple[pa.Table, ...]
    title: str = "tables"

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(table.num_rows for table in self.tables)

    @property
    def schema(self) -> pa.Schema | None:
        return self.tables[0].schema if self.tables else None

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        return select(self.tables[piece], columns)

    def size(self, piece: int) -> int:
        return int(self.tables[piece].nbytes)

    @property
    def name(self) -> str:
        return self.title

    def fingerprint(self) -> str:
        """Return a checksum of all bytes, because there is no file name to identify them."""
        return self._checksum

    @functools.cached_property
    def _checksum(self) -> str:
        total = 0
        for table in self.tables:
            for column in table.columns:
                for array in column.chunks:
                    whole = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
                    sink = pa.BufferOutputStream()
                    with pa.ipc.new_stream(sink, pa.schema([("c", whole.type)])) as writer:
                        writer.write_batch(pa.record_batch([whole], names=["c"]))
                    total = zlib.crc32(sink.getvalue(), total)
        return digest("tables", sum(self.counts), total)


class LazyTables(DataSource):
    """Tables that are computed when they are first needed and then kept, such as the results of a sort or a groupby.

    Pickling computes them, so another process receives the tables, not the function.
    """

    def __init__(self, make: Callable[[], Sequence[pa.Table]], title: str) -> None:
        self._make = make
        self._title = title
        self._lock = threading.Lock()
        self._tables: Tables | None = None

    @property
    def tables(self) -> Tables:
        with self._lock:
            if self._tables is None:
                self._tables = Tables(tuple(self._make()), self._title)
            return self._tables

    @property
    def is_known(self) -> bool:
        return self._tables is not None

    @property
    def counts(self) -> tuple[int, ...]:
        return self.tables.counts

    @property
    def schema(self) -> pa.Schema | None:
        return self._tables.schema if self._tables is not None else None

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        return self.tables.read(piece, columns)

    def size(self, piece: int) -> int:
        return self.tables.size(piece)

    @property
    def name(self) -> str:
        return self._title

    def fingerprint(self) -> str:
        return self.tables.fingerprint()

    def __reduce__(self) -> Any:
        return Tables, (self.tables.tables, self._title)


@dataclass(frozen=True)
class Items(DataSource):
    """An indexable object, such as a torch dataset. Items are fetched when their piece is read."""

    items: Any
    rows: int = 256

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        return cut(len(self.items), self.rows)

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        first = piece * self.rows
        fetched = [self.items[number] for number in range(first, first + self.counts[piece])]
        return select(table_of(chunk_of_rows([as_row(item) for item in fetched])), columns)

    @property
    def name(self) -> str:
        return type(self.items).__name__


def as_row(item: Any) -> dict[str, Any]:
    return item if isinstance(item, dict) else {"item": item}


def cut(total: int, most: int) -> tuple[int, ...]:
    full, rest = divmod(total, most)
    return (most,) * full + ((rest,) if rest else ())


def tables_of(table: pa.Table, num_pieces: int | None = None) -> tuple[pa.Table, ...]:
    """Divide a table into pieces that are small enough to distribute and shuffle."""
    rows = table.num_rows
    if num_pieces is None:
        num_pieces = max(-(-rows // ROWS), -(-int(table.nbytes) // BYTES), min(rows, 8), 1)
    if num_pieces < 1:
        raise DataError(f"the number of blocks must be at least 1, got {num_pieces}")
    bounds = [rows * number // num_pieces for number in range(num_pieces + 1)]
    return tuple(table.slice(low, high - low) for low, high in itertools.pairwise(bounds))


def table_of_items(items: Sequence[Any]) -> pa.Table:
    return table_of(chunk_of_rows([as_row(item) for item in items]))
