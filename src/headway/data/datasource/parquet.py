"""Parquet files. A piece is a row group; the footers, which are read once, contain its row count and columns."""

from __future__ import annotations

import concurrent.futures
import functools
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headway.core.errors import DataError
from headway.data.blocks.chunk import empty_table
from headway.data.blocks.tensor_columns import without_foreign_types
from headway.data.datasource.base import Columns, DataSource, check_columns, digest
from headway.data.datasource.file_listing import File, Files

FOOTERS = 16  # maximum number of footers that are read at the same time
SLICE = 384 << 10  # bytes that are decoded at once


class Group(NamedTuple):
    file: int
    number: int
    num_rows: int
    num_bytes: int


@dataclass(frozen=True)
class Found:
    """The metadata from the footers of all files."""

    groups: tuple[Group, ...]
    schema: pa.Schema
    fingerprint: str
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParquetFiles(DataSource):
    """Parquet files. ``filter`` is an Arrow expression. ``skip``: skip damaged files and row groups."""

    files: Files
    columns: tuple[str, ...] | None = None
    filter: Any = None
    skip: bool = False
    _open: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)
    _left_out: list[str] = field(default_factory=list, compare=False, repr=False)

    @functools.cached_property
    def found(self) -> Found:
        with concurrent.futures.ThreadPoolExecutor(FOOTERS) as pool:
            footers = list(pool.map(self._footer, range(len(self.files.files))))
        groups, schema, first, skipped, marks = [], None, None, [], []
        for number, (file, footer) in enumerate(zip(self.files.files, footers, strict=True)):
            if isinstance(footer, DataError):
                skipped.append(str(footer))
                continue
            own = self._chosen(self._with_partitions(footer.schema.to_arrow_schema(), file), file)
            schema = own if schema is None else _common(schema, own, first, file)
            first = first or file
            marks.append((file.below, file.size, footer.num_rows, _statistics(footer)))
            groups += [_group(number, footer, each, own) for each in range(footer.num_row_groups)]
        if schema is None:
            raise DataError("none of the files could be read: " + "; ".join(skipped))
        self._check_filter(footers)
        found = tuple(group for group in groups if group.num_rows)
        return Found(found, schema, digest(marks, self.columns, str(self.filter)), tuple(skipped))

    def _footer(self, number: int) -> Any:
        try:
            with self.files.open(number) as file:
                return pq.read_metadata(file)
        except (pa.ArrowInvalid, OSError) as error:
            damaged = DataError(f"{self.files.files[number].path} is not a readable Parquet file: {error}")
            if self.skip:
                return damaged
            raise damaged from error

    @functools.cached_property
    def _partition_types(self) -> dict[str, pa.DataType]:
        return _partition_types(self.files.files)

    def _with_partitions(self, schema: pa.Schema, file: File) -> pa.Schema:
        for name in _partitions(file):
            if name not in schema.names:
                schema = schema.append(pa.field(name, self._partition_types[name]))
        return schema

    def _check_filter(self, footers: Sequence[Any]) -> None:
        if self.filter is None:
            return
        for file, footer in zip(self.files.files, footers, strict=True):
            if not isinstance(footer, DataError):
                schema = self._with_partitions(footer.schema.to_arrow_schema(), file)
                try:
                    empty_table(schema).filter(self.filter)
                except pa.ArrowException as error:
                    raise DataError(f"the filter cannot be applied to {file.path}: {error}") from error

    def _chosen(self, schema: pa.Schema, file: File) -> pa.Schema:
        if self.columns is None:
            return schema
        check_columns(self.columns, schema.names, file.path)
        return pa.schema([schema.field(name) for name in self.columns])

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(group.num_rows for group in self.found.groups)

    @property
    def schema(self) -> pa.Schema:
        return self.found.schema

    @property
    def exact(self) -> bool:
        return self.filter is None and not self.skip

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        group = self.found.groups[piece]
        file = self.files.files[group.file]
        names = list(columns if columns is not None else self.schema.names)
        try:
            table = self._read_group(group, names, file)
        except (pa.ArrowException, OSError) as error:
            if self.skip:
                self._left_out.append(f"{self.where(piece)}: {error}")
                return empty_table(self.schema).select(names)
            raise DataError(f"{self.where(piece)} cannot be read: {error}") from error
        return self._as_one_schema(table, names)

    def _read_group(self, group: Group, names: list[str], file: File) -> pa.Table:
        """Read a row group; if there is a filter, read all columns, because the filter may refer to any of them."""
        partitions = _partitions(file)
        with self.files.open(group.file) as opened:
            away = self.files.filesystem is not None
            reader = pq.ParquetFile(opened, metadata=self._open.get(group.file), pre_buffer=away)
            self._open[group.file] = reader.metadata
            wanted = None if self.filter is not None else [name for name in names if name not in partitions]
            table = _decoded(reader, group, wanted)
        for name, value in partitions.items():
            if name not in table.column_names:
                kind = self._partition_types[name]
                scalar = pa.scalar(int(value) if kind == pa.int64() else value, kind)
                table = table.append_column(name, pa.repeat(scalar, group.num_rows))
        return (table if self.filter is None else table.filter(self.filter)).select(names)

    def _as_one_schema(self, table: pa.Table, names: list[str]) -> pa.Table:
        for number, name in enumerate(names):
            kind = self.schema.field(name).type
            if table.schema.field(number).type != kind:
                table = table.set_column(number, name, table.column(number).cast(kind))
        return without_foreign_types(table)

    @property
    def left_out(self) -> Sequence[str]:
        return [*self.found.skipped, *self._left_out]

    def size(self, piece: int) -> int:
        return self.found.groups[piece].num_bytes

    def where(self, piece: int) -> str:
        group = self.found.groups[piece]
        return f"{self.files.files[group.file].path}, row group {group.number}"

    @property
    def name(self) -> str:
        return "read_parquet"

    def fingerprint(self) -> str:
        return self.found.fingerprint

    def contents(self) -> str:
        return self.files.contents()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}


def _decoded(reader: Any, group: Group, columns: list[str] | None) -> pa.Table:
    """Decode a row group in slices that fit into a core's cache, which is faster and takes less memory."""
    rows = max(64, SLICE * group.num_rows // max(1, group.num_bytes))
    if rows >= group.num_rows or columns == []:
        return reader.read_row_group(group.number, columns=columns, use_threads=False)
    slices = reader.iter_batches(batch_size=rows, row_groups=[group.number], columns=columns, use_threads=False)
    return pa.Table.from_batches(list(slices))


def _group(file: int, footer: Any, number: int, schema: pa.Schema) -> Group:
    group = footer.row_group(number)
    sizes: dict[str, int] = {}
    for column in range(group.num_columns):
        chunk = group.column(column)
        top = chunk.path_in_schema.split(".")[0]
        sizes[top] = sizes.get(top, 0) + chunk.total_uncompressed_size
    total = sum(max(sizes.get(each.name, 0), _fixed_size(each.type) * group.num_rows) for each in schema)
    return Group(file, number, group.num_rows, total)


def _fixed_size(kind: pa.DataType) -> int:
    """Return the size of one value in bytes; 0 if sizes differ."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return int(np.prod(kind.shape)) * _fixed_size(kind.value_type)
    try:
        return int(kind.bit_width) // 8
    except ValueError:
        return 0


def _statistics(footer: Any) -> str:
    """Return offsets and statistics of all pages, which almost always change when the contents change."""
    return digest([str(footer.row_group(number).to_dict()) for number in range(footer.num_row_groups)])


def _common(schema: pa.Schema, other: pa.Schema, first: File | None, file: File) -> pa.Schema:
    """Return a common schema for two files; number types may widen, but no column may be missing."""
    missing = set(schema.names) ^ set(other.names)
    path = first.path if first else ""
    if missing:
        raise DataError(
            f"{file.path} and {path} do not have the same columns; they differ in {', '.join(sorted(missing))}: "
            "choose columns that all files have, with columns=[...]"
        )
    try:
        return pa.unify_schemas([schema.remove_metadata(), other.remove_metadata()], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"{file.path} has different column types than {path}: {error}") from error


# --- directories named key=value ---


def _partitions(file: File) -> dict[str, str]:
    parts = (part.split("=", 1) for part in file.below.split("/")[:-1] if "=" in part)
    return {name: urllib.parse.unquote(value) for name, value in parts}


def _partition_types(files: Sequence[File]) -> dict[str, pa.DataType]:
    """Return the types of the partition keys: integer if every directory has an integer, otherwise string."""
    values: dict[str, list[str]] = {}
    for file in files:
        for name, value in _partitions(file).items():
            values.setdefault(name, []).append(value)
    return {name: pa.int64() if all(map(_is_number, found)) else pa.string() for name, found in values.items()}


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()
