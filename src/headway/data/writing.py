"""Datasets as files: a folder of them, each written under another name first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from headway.core.errors import DataError
from headway.data.chunks import joined, num_bytes, num_rows, table_of
from headway.data.source import refuse_unknown
from headway.data.tensors import PyObjects, RaggedTensor, array_of

FILE = 128 << 20  # bytes of rows in a file, about
GROUP = 8 << 20  # and in a row group: what is read at once


class Writing:
    def _chunks(self, what: str) -> Iterator[Any]:
        raise NotImplementedError

    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        row_group_rows: int | None = None,
        arrow_parquet_args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """A folder of Parquet files, in row groups of about 8 MiB: small enough to be dealt out and shuffled."""
        refuse_unknown(options)
        import pyarrow.parquet as pq

        def write(table: pa.Table, file: Any) -> None:
            rows = row_group_rows or max(1, min(table.num_rows, GROUP * table.num_rows // max(1, table.nbytes)))
            pq.write_table(table, file, row_group_size=rows, **(arrow_parquet_args or {}))

        self._write(path, "parquet", write)

    def write_csv(self, path: str | os.PathLike[str], **options: Any) -> None:
        """A folder of CSV files."""
        refuse_unknown(options)
        from pyarrow import csv

        self._write(path, "csv", lambda table, file: csv.write_csv(_without_tensors(table, "CSV"), file))

    def write_json(self, path: str | os.PathLike[str], **options: Any) -> None:
        """A folder of JSON lines."""
        refuse_unknown(options)
        import json

        def write(table: pa.Table, file: Any) -> None:
            for row in _lists(table).to_pylist():
                file.write(json.dumps(row, default=str).encode() + b"\n")

        self._write(path, "json", write)

    def _write(self, path: str | os.PathLike[str], suffix: str, write: Callable[[pa.Table, Any], None]) -> None:
        target = _Target(os.fspath(path))
        number = 0
        for table in _tables(self._chunks(f"writing {suffix}")):
            for field in table.schema:
                if isinstance(field.type, PyObjects):
                    raise DataError(f"column {field.name!r} holds Python objects, which are not written to files")
            target.write(f"part-{number:06d}.{suffix}", table, write)
            number += 1
        if not number:
            raise DataError("the dataset is empty: there is nothing to write")


def _tables(chunks: Iterator[Any]) -> Iterator[pa.Table]:
    group: list[Any] = []
    size = 0
    for chunk in chunks:
        if num_rows(chunk):
            group.append(chunk)
            size += num_bytes(chunk)
        if size >= FILE:
            yield table_of(joined(group))
            group, size = [], 0
    if group:
        yield table_of(joined(group))


class _Target:
    """A folder, on this machine or elsewhere."""

    def __init__(self, path: str) -> None:
        if "://" in path:
            from headway.storage.remote.store import open_store

            store = open_store(path)
            self._fs, self._path = store.filesystem, store.path.rstrip("/")
        else:
            from pyarrow.fs import LocalFileSystem

            self._fs, self._path = LocalFileSystem(), os.path.abspath(path)
        self._local = "://" not in path
        if self._local:
            os.makedirs(self._path, exist_ok=True)

    def write(self, name: str, table: pa.Table, write: Callable[[pa.Table, Any], None]) -> None:
        """What is not whole has a name that readers pass over."""
        final = f"{self._path}/{name}"
        part = f"{self._path}/.{name}.part" if self._local else final
        with self._fs.open_output_stream(part) as file:
            write(table, file)
        if self._local:
            os.replace(part, final)


def _without_tensors(table: pa.Table, what: str) -> pa.Table:
    for field in table.schema:
        if isinstance(field.type, pa.BaseExtensionType) or pa.types.is_nested(field.type):
            raise DataError(f"column {field.name!r} holds {field.type}, which {what} has no way to write")
    return table


def _lists(table: pa.Table) -> pa.Table:
    for number, field in enumerate(table.schema):
        if isinstance(field.type, pa.FixedShapeTensorType | RaggedTensor):
            values = array_of(table.column(number).combine_chunks())
            table = table.set_column(number, field.name, pa.array([value.tolist() for value in values]))
    return table
