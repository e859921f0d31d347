"""CSV, JSON Lines and text files, whose rows must be counted first.

Lines are counted once, at disk speed, and each file is divided between lines into pieces that can be read
independently. A file is a single piece if it is compressed, or if rows may span lines (quoted line breaks, which must
be enabled).
"""

from __future__ import annotations

import codecs
import concurrent.futures
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from headway.core.errors import DataError
from headway.data.blocks.chunk import empty_table
from headway.data.datasource.base import Columns, DataSource, digest, select
from headway.data.datasource.file_listing import Files

PIECE = 4 << 20  # approximate bytes of a file per piece
COUNTERS = 8
CUTTABLE = ("utf-8", "ascii", "iso8859-1", "cp1252")  # encodings in which a line break is always one specific byte
SPANNING = "ParseOptions(newlines_in_values=True)"
JSON_LINES = "read_json reads JSON Lines, one object per line; pandas.DataFrame.to_json(lines=True) writes them"
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4", ".br")

Kind = Literal["csv", "json", "text"]


class Part(NamedTuple):
    """A range of bytes of a file; ``stop`` None: the complete file."""

    file: int
    first: int
    stop: int | None
    num_rows: int
    first_line: int


@dataclass(frozen=True)
class LineFiles(DataSource):
    """Files of lines. ``options`` are passed to Arrow's reader; ``skip``: skip damaged files and pieces."""

    files: Files
    kind: Kind
    options: Any = None
    skip: bool = False
    _left_out: list[str] = field(default_factory=list, compare=False, repr=False)
    _headers: dict[int, list[str]] = field(default_factory=dict, compare=False, repr=False)

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        with concurrent.futures.ThreadPoolExecutor(COUNTERS) as pool:
            found = list(pool.map(self._parts_of, range(len(self.files.files))))
        return tuple(part for parts in found for part in parts if part.num_rows)

    def _parts_of(self, number: int) -> list[Part]:
        path = self.files.files[number].path
        try:
            if self._is_whole(number):
                whole = Part(number, 0, None, 0, 0)
                return [whole._replace(num_rows=self._parsed(whole).num_rows)]
            return self._counted(number)
        except (pa.ArrowException, DataError, UnicodeError) as error:
            if self.skip:
                self._left_out.append(f"{path}: {error}")
                return []
            raise self._unreadable(path, error) from error

    def _unreadable(self, where: str, error: Exception) -> DataError:
        hint = f"; {JSON_LINES}" if self.kind == "json" else ""
        return DataError(f"{where} cannot be read: {error}{hint}")

    def _is_whole(self, number: int) -> bool:
        """Whether a file cannot be divided between lines."""
        options = self.options or {}
        if (
            getattr(options.get("parse_options"), "newlines_in_values", False)
            or options.get("read_options") is not None
        ):
            return True
        if codecs.lookup(options.get("encoding", "utf-8")).name not in CUTTABLE:
            return True
        if self.files.files[number].path.endswith(COMPRESSED):
            return True
        with self.files.open(number) as file:
            head = file.read(1 << 16)
        return b"\r" in head and b"\n" not in head

    def _counted(self, number: int) -> list[Part]:
        header = self.kind == "csv"
        parts, at, lines = [], 0, 0
        with self.files.open(number) as file:
            if file.read(4) == b"PAR1":
                raise DataError("it is a Parquet file: use read_parquet")
            file.seek(0)
            rest = b""
            while True:
                data = rest + (block := file.read(PIECE))
                cut = len(data) if not block else data.rfind(b"\n") + 1
                rest = data[cut:]
                if self.kind == "json" and not lines and data.lstrip()[:1] == b"[":
                    raise DataError("it contains an array")
                if cut:
                    rows = self._num_rows(data[:cut])
                    if header and rows:
                        parts.append(Part(number, at + _header_size(data), at + cut, rows - 1, 1))
                        header = False
                    else:
                        parts.append(Part(number, at, at + cut, rows, lines))
                    lines += rows
                    at += cut
                if not block:
                    return parts

    def _num_rows(self, data: bytes) -> int:
        """Count the lines that are not empty, each of which is a row."""
        if self.kind == "text":
            return len(self._lines(data))
        if self.kind == "csv":
            quote = getattr((self.options or {}).get("parse_options"), "quote_char", '"')
            if quote and data.count(quote.encode()) % 2:
                raise DataError(f"a quoted value spans lines, which requires {SPANNING}")
            return sum(1 for line in data.split(b"\n") if line not in (b"", b"\r"))
        return sum(1 for line in data.split(b"\n") if line.strip())

    def _lines(self, data: bytes) -> list[str]:
        text = data.decode((self.options or {}).get("encoding", "utf-8"))
        return [line.rstrip("\r") for line in text.split("\n") if line.strip()]

    @property
    def left_out(self) -> Sequence[str]:
        return self._left_out

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(part.num_rows for part in self.parts)

    @functools.cached_property
    def schema(self) -> pa.Schema | None:
        """The schema that Arrow infers from the first piece. Later pieces must match it."""
        if self.kind == "text":
            return pa.schema([("text", pa.string())])
        for number, part in enumerate(self.parts):
            try:
                return self._parsed(part).schema
            except (pa.ArrowException, OSError) as error:
                if not self.skip:
                    raise self._unreadable(self.where(number), error) from error
        return None

    @property
    def exact(self) -> bool:
        return not self.skip

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        schema, part = self.schema, self.parts[piece]
        try:
            table = self._parsed(part)
            if schema is not None and table.schema != schema:
                table = _cast(table, schema, nulls=self.kind == "json")
            if table.num_rows != part.num_rows:
                raise DataError(
                    f"{part.num_rows:,} lines were parsed as {table.num_rows:,} rows; "
                    f"rows that span lines require {SPANNING}"
                )
        except (pa.ArrowException, DataError, UnicodeError) as error:
            if self.skip and schema is not None:
                self._left_out.append(f"{self.where(piece)}: {error}")
                return select(empty_table(schema), columns)
            raise self._unreadable(self.where(piece), error) from error
        return select(table, columns)

    def _bytes(self, part: Part) -> bytes:
        if part.stop is None:
            with self.files.open_decompressed(part.file) as stream:
                return bytes(stream.read())
        with self.files.open(part.file) as file:
            file.seek(part.first)
            return bytes(file.read(part.stop - part.first))

    def _parsed(self, part: Part) -> pa.Table:
        data, options = self._bytes(part), self.options or {}
        if self.kind == "text":
            return pa.table({"text": pa.array(self._lines(data), pa.string())})
        if self.kind == "json":
            from pyarrow import json

            reading = json.ReadOptions(use_threads=False, block_size=max(1 << 20, len(data) + 1))
            return json.read_json(pa.BufferReader(data), read_options=reading)
        from pyarrow import csv

        names = None if part.stop is None else self._names(part.file)
        chosen = options.get("read_options") or csv.ReadOptions(use_threads=False, column_names=names)
        rest = {name: value for name, value in options.items() if name in ("parse_options", "convert_options")}
        return csv.read_csv(pa.BufferReader(data), read_options=chosen, **rest)

    def _names(self, number: int) -> list[str]:
        """Return the column names in the header of a CSV file, which is read once."""
        from pyarrow import csv

        if number in self._headers:
            return self._headers[number]
        with self.files.open(number) as file:
            head = file.read(1 << 20)
        data = head[: _header_size(head)]
        rest = {"parse_options": self.options["parse_options"]} if "parse_options" in (self.options or {}) else {}
        self._headers[number] = csv.read_csv(pa.BufferReader(data), **rest).column_names
        return self._headers[number]

    def size(self, piece: int) -> int:
        part = self.parts[piece]
        return self.files.files[part.file].size * 4 if part.stop is None else part.stop - part.first

    def where(self, piece: int) -> str:
        part = self.parts[piece]
        lines = f", lines {part.first_line + 1:,} to {part.first_line + part.num_rows:,}" if part.stop else ""
        return f"{self.files.files[part.file].path}{lines}"

    @property
    def name(self) -> str:
        return f"read_{self.kind}"

    def fingerprint(self) -> str:
        return digest(self.kind, self.files.fingerprint(), self.counts)

    def contents(self) -> str:
        return self.files.contents()


def _header_size(data: bytes) -> int:
    """Return the number of bytes up to the end of the first line that is not empty."""
    at = 0
    while at < len(data):
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end + 1
        if data[at:end].strip():
            return end
        at = end
    return at


def _cast(table: pa.Table, schema: pa.Schema, *, nulls: bool) -> pa.Table:
    """Convert a table to a schema. ``nulls``: fill missing columns with nulls, as for JSON objects without a key."""
    if nulls:
        for field in schema:
            if field.name not in table.column_names:
                table = table.append_column(field.name, pa.nulls(table.num_rows, field.type))
    missing = set(schema.names) ^ set(table.column_names)
    if missing:
        raise DataError(f"its columns are not those of the first rows: they differ in {', '.join(sorted(missing))}")
    try:
        return table.select(schema.names).cast(schema)
    except pa.ArrowException as error:
        raise DataError(f"its column types differ from those of the first rows: {error}") from error
