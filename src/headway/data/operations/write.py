"""Datasets as files: a folder of them, each written under another name first, and all named when all are whole."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from headway.core.config import local_path, scheme_of
from headway.core.errors import DataError
from headway.data.blocks.chunk import joined, num_bytes, num_rows, table_of
from headway.data.blocks.tensor_columns import PyObjects, RaggedTensor, array_of
from headway.data.datasource.base import refuse_unknown
from headway.data.datasource.file_listing import MOVING

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
        """A folder of Parquet files, in row groups of about 8 MiB: small enough to be dealt out and shuffled.

        They take the place of those that an earlier write has left there, once all of them are whole.
        """
        refuse_unknown(options)
        import pyarrow.parquet as pq

        def write(table: pa.Table, file: Any) -> None:
            rows = row_group_rows or max(1, min(table.num_rows, GROUP * table.num_rows // max(1, table.nbytes)))
            pq.write_table(table, file, row_group_size=rows, **(arrow_parquet_args or {}))

        self._write(path, "parquet", write)

    def write_csv(self, path: str | os.PathLike[str], **options: Any) -> None:
        """A folder of CSV files, in the place of those of an earlier write."""
        refuse_unknown(options)
        from pyarrow import csv

        self._write(path, "csv", lambda table, file: csv.write_csv(_without_tensors(table, "CSV"), file))

    def write_json(self, path: str | os.PathLike[str], **options: Any) -> None:
        """A folder of JSON lines, in the place of those of an earlier write."""
        refuse_unknown(options)
        import json

        def write(table: pa.Table, file: Any) -> None:
            for row in _lists(table).to_pylist():
                file.write(json.dumps(row, default=str).encode() + b"\n")

        self._write(path, "json", write)

    def _write(self, path: str | os.PathLike[str], suffix: str, write: Callable[[pa.Table, Any], None]) -> None:
        with _Target(os.fspath(path), suffix) as target:
            for table in _tables(self._chunks(f"writing {suffix}")):
                for field in table.schema:
                    if isinstance(field.type, PyObjects):
                        raise DataError(f"column {field.name!r} holds Python objects, which are not written to files")
                target.write(table, write)
            if not target.number:
                raise DataError("the dataset is empty: there is nothing to write")
            target.finish()


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
    """A folder, on this machine or elsewhere, that shall hold one dataset."""

    def __init__(self, path: str, suffix: str) -> None:
        self.number = 0  # files so far
        self._suffix = suffix
        self._local = scheme_of(path) in ("", "file", "local")
        self._lock = -1
        if self._local:
            from pyarrow.fs import LocalFileSystem

            self._fs, self._path = LocalFileSystem(), str(local_path(path))
            os.makedirs(self._path, exist_ok=True)
        else:
            from headway.storage.object_store.base import open_store

            self._store = open_store(path)
            self._fs, self._path = self._store.filesystem, self._store.path.rstrip("/")

    def __enter__(self) -> _Target:
        if self._local:
            self._take()
            self._sweep()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._local:
            self._sweep()
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a process that was forked meanwhile has a copy of it
            os.close(self._lock)

    def _take(self) -> None:
        """DataError where another write is under way: the files of both would be mixed."""
        self._lock = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise DataError(
                f"{self._path} is being written by another program, or by another worker: wait for it, or "
                "give each a directory of its own"
            ) from None
        except OSError:  # a filesystem without locks
            return

    def _sweep(self) -> None:
        """Remove what was not finished, now or by a program that was killed."""
        ours = re.compile(rf"\.part-\d{{6,}}\.{self._suffix}\.part")
        for name in filter(ours.fullmatch, os.listdir(self._path)):
            os.remove(f"{self._path}/{name}")

    def write(self, table: pa.Table, write: Callable[[pa.Table, Any], None]) -> None:
        with self._fs.open_output_stream(self._unfinished(self.number)) as file:
            write(table, file)
        self.number += 1

    def finish(self) -> None:
        """Name what was written, and remove what an earlier, longer write has left: readers would take both."""
        if self._local:
            self._name_all()
        else:
            self._store.delete(self._longer(self._store.sizes()))

    def _name_all(self) -> None:
        """Until all of them are named, and should we be killed, no reader takes the mixture for a dataset."""
        marker = f"{self._path}/{MOVING}"
        with open(marker, "w"):
            pass
        for number in range(self.number):
            try:
                os.replace(self._unfinished(number), f"{self._path}/{self._name(number)}")
            except OSError:
                if number == 0:  # all is as it was
                    os.remove(marker)
                raise
        for name in self._longer(os.listdir(self._path)):
            os.remove(f"{self._path}/{name}")
        os.remove(marker)

    def _longer(self, names: Iterable[str]) -> list[str]:
        """Those that a write of more files than this one has given."""
        ours = re.compile(rf"part-(\d{{6,}})\.{self._suffix}")
        return [name for name in names if (match := ours.fullmatch(name)) and int(match[1]) >= self.number]

    def _name(self, number: int) -> str:
        return f"part-{number:06d}.{self._suffix}"

    def _unfinished(self, number: int) -> str:
        """A name that readers pass over; stores show nothing before it is whole."""
        name = self._name(number)
        return f"{self._path}/.{name}.part" if self._local else f"{self._path}/{name}"


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
