"""The writer of datasets as directories of files, which are renamed from temporary names once all are complete."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from headway.core.config import local_path, scheme_of
from headway.core.errors import DataError
from headway.data.blocks.chunk import Chunk, groups_of, joined, table_of
from headway.data.blocks.tensor_columns import PyObjects, RaggedTensor, array_of
from headway.data.datasource.file_listing import MOVING

FILE_BYTES = 128 << 20  # approximate bytes of rows in a file
ROW_GROUP_BYTES = 8 << 20  # bytes of rows in a row group, the unit of reading


def write_parquet(
    chunks: Iterator[Chunk],
    path: str | os.PathLike[str],
    row_group_rows: int | None,
    arrow_parquet_args: Mapping[str, Any],
) -> None:
    import pyarrow.parquet as pq

    def write_table(table: pa.Table, file: Any) -> None:
        rows = row_group_rows or max(1, min(table.num_rows, ROW_GROUP_BYTES * table.num_rows // max(1, table.nbytes)))
        pq.write_table(table, file, row_group_size=rows, **arrow_parquet_args)

    _write(chunks, path, "parquet", write_table)


def write_csv(chunks: Iterator[Chunk], path: str | os.PathLike[str]) -> None:
    from pyarrow import csv

    _write(chunks, path, "csv", lambda table, file: csv.write_csv(_without_nested(table, "CSV"), file))


def write_json(chunks: Iterator[Chunk], path: str | os.PathLike[str]) -> None:
    import json

    def write_table(table: pa.Table, file: Any) -> None:
        for row in _with_lists(table).to_pylist():
            file.write(json.dumps(row, default=str).encode() + b"\n")

    _write(chunks, path, "json", write_table)


def _write(
    chunks: Iterator[Chunk], path: str | os.PathLike[str], suffix: str, write_table: Callable[[pa.Table, Any], None]
) -> None:
    with _TargetDirectory(os.fspath(path), suffix) as target:
        for group in groups_of(chunks, FILE_BYTES):
            table = table_of(joined(group))
            for field in table.schema:
                if isinstance(field.type, PyObjects):
                    raise DataError(f"column {field.name!r} contains Python objects, which cannot be written to files")
            target.write(table, write_table)
        if not target.num_files:
            raise DataError("the dataset is empty: there is nothing to write")
        target.finish()


class _TargetDirectory:
    """The directory, on this machine or in an object store, that contains one dataset once all files are written."""

    def __init__(self, path: str, suffix: str) -> None:
        self.num_files = 0
        self._suffix = suffix
        self._local = scheme_of(path) in ("", "file", "local")
        self._lock = -1
        if self._local:
            from pyarrow.fs import LocalFileSystem

            self._fs, self._path = LocalFileSystem(), str(local_path(path))
            try:
                os.makedirs(self._path, exist_ok=True)
            except OSError as error:
                raise DataError(f"directory {self._path} cannot be created: {error.strerror}") from error
        else:
            from headway.storage.object_store.client_selection import open_store

            self._store = open_store(path)
            self._fs, self._path = self._store.filesystem, self._store.path.rstrip("/")

    def __enter__(self) -> _TargetDirectory:
        if self._local:
            self._lock_directory()
            self._remove_unfinished()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._local:
            self._remove_unfinished()
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a process forked during the write has a copy of the descriptor
            os.close(self._lock)

    def _lock_directory(self) -> None:
        """Raise DataError if another write is in progress, because the files of both would be mixed."""
        self._lock = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise DataError(
                f"another program or worker is writing to {self._path}: wait until it has finished, or use a "
                "separate directory for each"
            ) from None
        except OSError:  # the filesystem does not support locks
            return

    def _remove_unfinished(self) -> None:
        """Remove unfinished files of this write if it failed, or of an earlier write that was killed."""
        ours = re.compile(rf"\.part-\d{{6,}}\.{self._suffix}\.part")
        for name in filter(ours.fullmatch, os.listdir(self._path)):
            os.remove(f"{self._path}/{name}")

    def write(self, table: pa.Table, write_table: Callable[[pa.Table, Any], None]) -> None:
        with self._fs.open_output_stream(self._temporary_name(self.num_files)) as file:
            write_table(table, file)
        self.num_files += 1

    def finish(self) -> None:
        """Rename the written files. Remove files of an earlier, longer write, which readers would also read."""
        if self._local:
            self._rename_all()
        else:
            self._store.delete(self._leftovers(self._store.sizes()))

    def _rename_all(self) -> None:
        """Rename all files. A marker file keeps readers from a mixture of two datasets, even if this is killed."""
        marker = f"{self._path}/{MOVING}"
        with open(marker, "w"):
            pass
        for number in range(self.num_files):
            try:
                os.replace(self._temporary_name(number), f"{self._path}/{self._name(number)}")
            except OSError:
                if number == 0:  # no file was renamed yet
                    os.remove(marker)
                raise
        for name in self._leftovers(os.listdir(self._path)):
            os.remove(f"{self._path}/{name}")
        os.remove(marker)

    def _leftovers(self, names: Iterable[str]) -> list[str]:
        """Return the files that remain from a longer write."""
        ours = re.compile(rf"part-(\d{{6,}})\.{self._suffix}")
        return [name for name in names if (match := ours.fullmatch(name)) and int(match[1]) >= self.num_files]

    def _name(self, number: int) -> str:
        return f"part-{number:06d}.{self._suffix}"

    def _temporary_name(self, number: int) -> str:
        """Return a name that readers skip. Object stores need none, because incomplete files are invisible there."""
        name = self._name(number)
        return f"{self._path}/.{name}.part" if self._local else f"{self._path}/{name}"


def _without_nested(table: pa.Table, what: str) -> pa.Table:
    for field in table.schema:
        if isinstance(field.type, pa.BaseExtensionType) or pa.types.is_nested(field.type):
            raise DataError(f"column {field.name!r} has type {field.type}, which {what} cannot represent")
    return table


def _with_lists(table: pa.Table) -> pa.Table:
    for number, field in enumerate(table.schema):
        if isinstance(field.type, pa.FixedShapeTensorType | RaggedTensor):
            values = array_of(table.column(number).combine_chunks())
            table = table.set_column(number, field.name, pa.array([value.tolist() for value in values]))
    return table
