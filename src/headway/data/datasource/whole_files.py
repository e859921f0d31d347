"""Images, binary files, NumPy arrays, and tar files of samples (WebDataset)."""

from __future__ import annotations

import functools
import io
import json
import math
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn, Self

import numpy as np
import pyarrow as pa

from headway.core.errors import DataError
from headway.data.blocks.chunk import chunk_of_rows, table_of
from headway.data.datasource.base import Columns, DataSource, digest, select
from headway.data.datasource.file_listing import Files, is_utf8
from headway.data.datasource.memory import cut

IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tiff", ".tif", ".webp")
FILES = 64  # maximum files of a piece
BYTES = 8 << 20
LONGEST_NAME = 1 << 20  # maximum bytes of a name or of other attributes in a tar file

Kind = Literal["image", "bytes"]


@dataclass(frozen=True)
class FilePerRow(DataSource):
    """Files that are one row each. Images are converted to ``size_hw`` (height, width) and ``mode``, if given."""

    files: Files
    kind: Kind
    include_paths: bool = False
    size_hw: tuple[int, int] | None = None
    mode: str | None = None
    skip: bool = False
    _left_out: list[str] = field(default_factory=list, compare=False, repr=False)

    @functools.cached_property
    def _bounds(self) -> tuple[int, ...]:
        """The bounds of pieces of consecutive files."""
        bounds, size = [0], 0
        for number, file in enumerate(self.files.files):
            if number > bounds[-1] and (number - bounds[-1] >= FILES or size + file.size > BYTES):
                bounds.append(number)
                size = 0
            size += file.size
        return (*bounds, len(self.files.files))

    @property
    def left_out(self) -> Sequence[str]:
        return self._left_out

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(high - low for low, high in zip(self._bounds, self._bounds[1:], strict=False))

    @property
    def exact(self) -> bool:
        return not self.skip

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        rows = []
        for number in range(self._bounds[piece], self._bounds[piece + 1]):
            try:
                rows.append(self._row(number))
            except DataError as error:
                if not self.skip:
                    raise
                self._left_out.append(str(error))
        if not rows:
            return pa.table({})
        return select(table_of(chunk_of_rows(rows)), columns)

    def _row(self, number: int) -> dict[str, Any]:
        path = self.files.files[number].path
        data = self.files.read(number)
        row: dict[str, Any] = {"image": self._image(data, path)} if self.kind == "image" else {"bytes": data}
        if not self.include_paths:
            return row
        if not is_utf8(path):
            raise DataError(
                f"include_paths=True: the name of {path!a} is not UTF-8, which a text column requires; rename it"
            )
        return {**row, "path": path}

    def _image(self, data: bytes, path: str) -> np.ndarray[Any, Any]:
        from PIL import Image

        try:
            with Image.open(io.BytesIO(data)) as image:
                chosen = image.convert(self.mode) if self.mode else image
                if self.size_hw is not None:
                    chosen = chosen.resize((self.size_hw[1], self.size_hw[0]))
                return np.array(chosen)
        except Exception as error:  # PIL raises many types of errors, including one for suspiciously large images
            raise DataError(f"{path} is not a readable image: {error}") from error

    def size(self, piece: int) -> int:
        size = sum(self.files.files[n].size for n in range(self._bounds[piece], self._bounds[piece + 1]))
        if self.kind == "image" and self.size_hw is not None:
            return self.counts[piece] * self.size_hw[0] * self.size_hw[1] * 3
        return size * 8 if self.kind == "image" else size

    def where(self, piece: int) -> str:
        first, last = self._bounds[piece], self._bounds[piece + 1] - 1
        return f"{self.files.files[first].path} … {os.path.basename(self.files.files[last].path)}"

    @property
    def name(self) -> str:
        return "read_images" if self.kind == "image" else "read_binary_files"

    def fingerprint(self) -> str:
        return digest(self.name, self.files.fingerprint(), self.size_hw, self.mode)

    def contents(self) -> str:
        return self.files.contents()


class Slab(NamedTuple):
    file: int
    first: int
    num_rows: int
    offset: int


@dataclass(frozen=True)
class NumpyFiles(DataSource):
    """``.npy`` files, whose first axis counts the rows. Large arrays are read in slices."""

    files: Files

    @functools.cached_property
    def _slabs(self) -> tuple[tuple[Slab, ...], list[Any]]:
        slabs, headers = [], []
        for number in range(len(self.files.files)):
            shape, dtype, offset = self._header(number)
            headers.append((shape, dtype))
            row = max(1, int(np.prod(shape[1:])) * dtype.itemsize)
            first = 0
            for rows in cut(shape[0], max(1, BYTES // row)):
                slabs.append(Slab(number, first, rows, offset + first * row))
                first += rows
        return tuple(slabs), headers

    def _header(self, number: int) -> tuple[tuple[int, ...], np.dtype[Any], int]:
        path = self.files.files[number].path
        with self.files.open(number) as file:
            try:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, fortran, dtype = read(file)
            except ValueError as error:
                raise DataError(f"{path} is not a readable .npy file: {error}") from error
            if fortran or dtype.hasobject or not shape:
                raise DataError(
                    f"{path} must contain rows of plain numbers in C order: save it again with "
                    "numpy.save(path, numpy.ascontiguousarray(array))"
                )
            if min(shape[1:], default=1) < 1 or not dtype.itemsize:
                raise DataError(
                    f"{path} must contain rows that are not empty; its header declares rows of shape {shape[1:]}"
                )
            begin, size = file.tell(), math.prod(shape) * dtype.itemsize
            if not 0 <= size <= self.files.files[number].size - begin:
                raise DataError(
                    f"{path} cannot be read: the file is too short for the {shape[0]:,} rows that its header declares"
                )
            return shape, dtype, begin

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(slab.num_rows for slab in self._slabs[0])

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        slab = self._slabs[0][piece]
        shape, dtype = self._slabs[1][slab.file]
        size = slab.num_rows * int(np.prod(shape[1:])) * dtype.itemsize
        with self.files.open(slab.file) as file:
            file.seek(slab.offset)
            data = file.read(size)
        if len(data) != size:
            raise DataError(f"{self.where(piece)} cannot be read: the file is too short for these rows")
        array = np.frombuffer(data, dtype).reshape(slab.num_rows, *shape[1:])
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        return select(table_of({"data": native}), columns)

    def size(self, piece: int) -> int:
        slab = self._slabs[0][piece]
        shape, dtype = self._slabs[1][slab.file]
        return int(slab.num_rows * np.prod(shape[1:]) * dtype.itemsize)

    def where(self, piece: int) -> str:
        slab = self._slabs[0][piece]
        return f"{self.files.files[slab.file].path}, rows {slab.first:,} to {slab.first + slab.num_rows - 1:,}"

    @property
    def name(self) -> str:
        return "read_numpy"

    def fingerprint(self) -> str:
        return digest("npy", self.files.fingerprint(), self.counts)

    def contents(self) -> str:
        return self.files.contents()


@dataclass(frozen=True)
class TarSamples(DataSource):
    """Tar files in which ``17.jpg`` and ``17.cls`` are two columns of one row. A piece is a range of samples."""

    files: Files
    decode: bool | Callable[[str, bytes], Any] = True
    rows: int = 64

    @functools.cached_property
    def _samples(self) -> tuple[tuple[int, tuple[tuple[str, tuple[tuple[str, int, int], ...]], ...]], ...]:
        """Return (file, ((key, ((column, offset, size), …)), …)), which only requires reading headers."""
        pieces = []
        for number in range(len(self.files.files)):
            samples: dict[str, list[tuple[str, int, int]]] = {}
            with self.files.open(number) as file:
                for key, column, offset, size in _members(file, self.files.files[number].path):
                    samples.setdefault(key, []).append((column, offset, size))
            listed = [(key, tuple(parts)) for key, parts in samples.items()]
            pieces += [(number, tuple(listed[at : at + self.rows])) for at in range(0, len(listed), self.rows)]
        return tuple(pieces)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(len(samples) for _, samples in self._samples)

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        number, samples = self._samples[piece]
        rows = []
        with self.files.open(number) as file:
            for key, parts in samples:
                row: dict[str, Any] = {"__key__": key}
                for column, offset, size in parts:
                    file.seek(offset)
                    row[column] = self._decoded(column, file.read(size), f"{self.files.files[number].path}: {key}")
                rows.append(row)
        try:
            return select(table_of(chunk_of_rows(rows)), columns)
        except DataError as error:
            raise DataError(f"{self.where(piece)}: {error}") from error

    def _decoded(self, column: str, data: bytes, where: str) -> Any:
        if callable(self.decode):
            return self.decode(column, data)
        if not self.decode:
            return data
        try:
            return _decoded(column.rsplit(".", 1)[-1].lower(), data)
        except Exception as error:  # libraries raise arbitrary exceptions for damaged or huge content
            raise DataError(f"{where}.{column} cannot be read: {error}") from error

    def size(self, piece: int) -> int:
        return sum(size for _, parts in self._samples[piece][1] for _, _, size in parts) * 4

    def where(self, piece: int) -> str:
        number, samples = self._samples[piece]
        return f"{self.files.files[number].path}, samples {samples[0][0]} to {samples[-1][0]}"

    @property
    def name(self) -> str:
        return "read_webdataset"

    def fingerprint(self) -> str:
        return digest("tar", self.files.fingerprint(), self.counts)

    def contents(self) -> str:
        return self.files.contents()


class _Member(tarfile.TarInfo):
    """A tar header that is validated.

    ``tarfile`` silently stops at a damaged header, seeks backwards by a negative size, and reads names of any length.
    """

    @classmethod
    def frombuf(cls, buf: Any, encoding: Any, errors: Any) -> Self:
        try:
            found = super().frombuf(buf, encoding, errors)
        except (tarfile.TruncatedHeaderError, tarfile.InvalidHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"a damaged header ({error})") from None
        described = found.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
        if found.size < 0 or (described and found.size > LONGEST_NAME):
            raise tarfile.ReadError(f"a header with an impossible size ({found.size})")
        if found.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse file")
        return found

    def _proc_gnusparse_10(self, *args: Any) -> NoReturn:
        raise tarfile.ReadError("a sparse file")  # tarfile may read the map of a sparse file endlessly


def _members(file: Any, path: str) -> Iterator[tuple[str, str, int, int]]:
    try:
        with tarfile.open(fileobj=file, mode="r:", tarinfo=_Member) as tar:
            for member in tar:
                if member.size < 0:  # an extended header can set a negative size
                    raise tarfile.ReadError(f"a header with an impossible size ({member.size})")
                folder, name = os.path.split(member.name)
                key, dot, column = name.partition(".")
                if member.isfile() and dot:
                    yield os.path.join(folder, key), column, member.offset_data, member.size
    except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{path} is not a readable tar file: {error}") from error


def _decoded(suffix: str, data: bytes) -> Any:
    """Decode a file according to its suffix. Pickles are not loaded, because the file may not be trustworthy."""
    if suffix in ("txt", "text", "transcript"):
        return data.decode()
    if suffix in ("cls", "cls2", "index", "count", "id"):
        return int(data)
    if suffix == "json":
        return json.loads(data)
    if suffix == "npy":
        return np.load(io.BytesIO(data), allow_pickle=False)
    if f".{suffix}" in IMAGES or suffix in ("ppm", "pgm"):
        from PIL import Image

        return np.array(Image.open(io.BytesIO(data)))
    return data
