"""The list of files that the user's paths, directories, patterns and URIs match, in a stable order."""

from __future__ import annotations

import concurrent.futures
import fnmatch
import functools
import glob
import os
import posixpath
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from headway.core.errors import DataError
from headway.data.datasource.base import digest

MOVING = ".headway-moving"  # a marker file in a directory whose dataset is being replaced

SAMPLES = 512  # blocks that are read to recognize the contents of files
SAMPLES_OF_FILE = 8
SAMPLE_BYTES = 4 << 10
READERS = 32

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class File:
    path: str
    size: int
    below: str  # the path relative to the user's path, so that it is the same on other machines


@dataclass(frozen=True)
class Files:
    """Files on one pyarrow filesystem; ``filesystem`` None: this machine's filesystem."""

    files: tuple[File, ...]
    filesystem: Any = None

    def open(self, number: int) -> Any:
        """Open a file for random access."""
        file = self.files[number]
        try:
            if self.filesystem is None and not is_utf8(file.path):
                return _python_file(file.path)
            return self.fs.open_input_file(file.path)
        except FileNotFoundError as error:
            raise gone(file.path) from error

    def open_decompressed(self, number: int) -> Any:
        """Open a file for sequential reading, decompressed according to its suffix."""
        path = self.files[number].path
        if self.filesystem is not None or is_utf8(path):
            return self.fs.open_input_stream(path)
        from pyarrow import CompressedInputStream

        file, suffix = _python_file(path), os.path.splitext(path)[1]
        codec = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}.get(suffix)
        return CompressedInputStream(file, codec) if codec else file

    def read(self, number: int) -> bytes:
        with self.open(number) as file:
            data: bytes = file.read()
            return data

    @functools.cached_property
    def fs(self) -> Any:
        from pyarrow.fs import LocalFileSystem

        return self.filesystem or LocalFileSystem()

    def fingerprint(self) -> str:
        return digest([(file.below, file.size) for file in self.files])

    def contents(self) -> str:
        """Return a digest of blocks of the files. Unlike a time of modification, it is the same for copies.

        A few blocks of each file are read; if there are many files, one block of some of them.
        """
        numbers = range(len(self.files))
        if len(numbers) > SAMPLES:
            numbers = range(0, len(numbers), -(-len(numbers) // SAMPLES))
        each = max(1, min(SAMPLES_OF_FILE, SAMPLES // max(1, len(numbers))))
        with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
            return digest(list(pool.map(lambda number: self._sample(number, each), numbers)))

    def _sample(self, number: int, num_blocks: int) -> str:
        free = self.files[number].size - num_blocks * SAMPLE_BYTES  # bytes that are not read
        stride = SAMPLE_BYTES + free // max(1, num_blocks - 1)
        first = free // 2 if num_blocks == 1 else 0
        try:
            with self.open(number) as file:
                if free <= 0:
                    return digest(file.read())
                blocks = []
                for block in range(num_blocks):
                    file.seek(first + block * stride)
                    blocks.append(file.read(SAMPLE_BYTES))
                return digest(blocks)
        except (OSError, DataError):  # reported, or skipped at the user's request, when the file is read
            return "unreadable"

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "filesystem": self.filesystem}


def is_utf8(path: str) -> bool:
    """Whether Arrow can open a file of this name. File names are bytes and may have any encoding."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _python_file(path: str) -> Any:
    import pyarrow

    return pyarrow.PythonFile(open(path, "rb"), "r")


def gone(path: str) -> DataError:
    return DataError(f"{path} no longer exists: it existed when the dataset was created")


def find(paths: Paths, filesystem: Any = None, suffixes: Iterable[str] | None = None) -> Files:
    """Find the files of these paths; in directories, only files with one of these suffixes that are not hidden."""
    wanted = tuple(suffixes) if suffixes is not None else None
    named = [paths] if isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable) else list(paths)
    for path in named:
        if not isinstance(path, str | os.PathLike):
            raise DataError(f"paths must be a path, a URI, or a list of them, got {path!r}")
    if not named:
        raise DataError("no paths were given")
    texts = [os.fspath(path) for path in named]
    if filesystem is None and not any("://" in text for text in texts):
        found = [file for text in texts for file in _local(text, wanted)]
        return Files(tuple(found))
    return _remote(texts, filesystem, wanted)


def _local(text: str, suffixes: tuple[str, ...] | None) -> list[File]:
    path = os.path.expanduser(text)
    if os.path.isdir(path):
        if os.path.exists(os.path.join(path, MOVING)):
            raise DataError(
                f"{path} contains files of two datasets, because a write is in progress or was interrupted: "
                "write the dataset again"
            )
        found = [
            os.path.join(root, name)
            for root, _, names in os.walk(path, onerror=_unreadable)
            for name in names
            if _is_data(os.path.relpath(os.path.join(root, name), path), suffixes)
        ]
        return [_file(each, os.path.relpath(each, path)) for each in _some(sorted(found), text)]
    if os.path.exists(path):
        return [_file(path, os.path.basename(path))]
    if glob.has_magic(path):
        found = sorted(each for each in glob.glob(path, recursive=True) if os.path.isfile(each))
        fixed = path[: min(path.index(each) for each in "*?[" if each in path)].rpartition("/")[0]
        return [_file(each, os.path.relpath(each, fixed or ".")) for each in _some(found, text)]
    raise DataError(f"there is no file or directory {text}")


def _file(path: str, below: str) -> File:
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):  # opening a pipe could block indefinitely
        raise DataError(f"{path} is not a regular file: remove it, or list the files to read")
    return File(os.path.abspath(path), status.st_size, below)


def _unreadable(error: OSError) -> NoReturn:
    """Raise an error, because skipping a directory would mean training on different data."""
    raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error


def _some(found: list[str], text: str) -> list[str]:
    if not found:
        raise DataError(f"{text} has no files to read")
    return found


def _is_data(below: str, suffixes: tuple[str, ...] | None) -> bool:
    """Whether a file is data. By convention, names that begin with a dot or an underscore are not."""
    if any(part.startswith((".", "_")) for part in below.split(os.sep)):
        return False
    return suffixes is None or below.lower().endswith(suffixes)


def _remote(texts: list[str], filesystem: Any, suffixes: tuple[str, ...] | None) -> Files:
    from headway.storage.object_store.client_selection import open_store

    fs, found = None, []
    for text in texts:
        magic = glob.has_magic(text)
        base = text.split("*")[0].rsplit("/", 1)[0] if magic else text
        store = open_store(base, filesystem)
        fs = fs or store.filesystem
        found += _listed(fs, store.path.rstrip("/"), text if magic else None, base, suffixes)
    return Files(tuple(found), fs)


def _listed(fs: Any, path: str, pattern: str | None, base: str, suffixes: tuple[str, ...] | None) -> list[File]:
    from pyarrow.fs import FileSelector, FileType

    info = fs.get_file_info(path)
    if info.type == FileType.File:
        return [File(info.path, info.size, posixpath.basename(path))]
    below = path + "/"
    infos = sorted(fs.get_file_info(FileSelector(path, recursive=True, allow_not_found=True)), key=lambda i: i.path)
    files = [File(i.path, i.size, i.path.removeprefix(below)) for i in infos if i.type == FileType.File]
    if pattern is not None:
        files = [file for file in files if fnmatch.fnmatch(f"{base}/{file.below}", pattern)]
    else:
        files = [file for file in files if _is_data(file.below, suffixes)]
    _some([file.path for file in files], pattern or base)
    return files
