"""Client for any filesystem that fsspec or pyarrow can open."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import ConfigError
from headway.storage.checkpoint.manifest import checksum
from headway.storage.object_store.base import with_retries


@dataclass(frozen=True)
class FsspecClient:
    """A path ``root`` on the fsspec filesystem ``fs``."""

    fs: Any
    root: str

    @property
    def url(self) -> str:
        return str(self.fs.unstrip_protocol(self.root))

    @property
    def path(self) -> str:
        return self.root

    @property
    def identity(self) -> str:
        try:
            return f"{self.url} {self.fs.to_json()}"
        except Exception:  # a user's own filesystem may not support it
            return self.url

    @property
    def filesystem(self) -> Any:
        import pyarrow.fs

        wrapped = getattr(self.fs, "fs", None)
        if isinstance(wrapped, pyarrow.fs.FileSystem):
            return wrapped
        return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(self.fs))

    def at(self, folder: str) -> FsspecClient:
        return FsspecClient(self.fs, posixpath.join(self.root, folder.strip("/")))

    def up(self, levels: int) -> FsspecClient:
        return FsspecClient(self.fs, "/".join(self.root.split("/")[:-levels]))

    def _key(self, key: str) -> str:
        return posixpath.join(self.root, key)

    def _parent(self, key: str) -> None:
        self.fs.makedirs(posixpath.dirname(self._key(key)), exist_ok=True)

    @with_retries("written")
    def put(self, key: str, data: bytes) -> None:
        self._parent(key)
        self.fs.pipe_file(self._key(key), data)

    @with_retries("written")
    def create(self, key: str, data: bytes) -> bool:
        """Write the key if it does not exist. Not atomic, as most filesystems have no such operation.

        The content is read back, to detect another writer at the same time.
        """
        self.fs.invalidate_cache()
        if self.fs.exists(self._key(key)):
            return False
        self._parent(key)
        self.fs.pipe_file(self._key(key), data)
        self.fs.invalidate_cache()
        return bool(self.fs.cat_file(self._key(key)) == data)

    @with_retries("written")
    def upload(self, key: str, path: Path) -> None:
        self._parent(key)
        self.fs.put_file(str(path), self._key(key))

    @with_retries("read")
    def read(self, key: str) -> bytes:
        return bytes(self.fs.cat_file(self._key(key)))

    @with_retries("read")
    def download(self, key: str, path: Path, size: int) -> str:
        self.fs.get_file(self._key(key), str(path))
        return checksum(path)

    @with_retries("read")
    def checksum(self, key: str, size: int) -> str:
        with self.fs.open(self._key(key), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @with_retries("listed")
    def sizes(self, folder: str = "") -> dict[str, int]:
        self.fs.invalidate_cache()
        try:
            found = self.fs.find(self._key(folder) if folder else self.root, detail=True)
        except FileNotFoundError:
            return {}
        root = self.fs._strip_protocol(self.root).rstrip("/")
        return {name[len(root) :].lstrip("/"): int(entry["size"] or 0) for name, entry in found.items()}

    @with_retries("deleted")
    def delete(self, keys: Iterable[str]) -> None:
        self.fs.invalidate_cache()
        for key in keys:
            try:
                self.fs.rm_file(self._key(key))
            except FileNotFoundError:
                continue


def as_fsspec(filesystem: Any) -> Any:
    """A filesystem of fsspec or pyarrow, as one of fsspec."""
    if hasattr(filesystem, "pipe_file"):
        return filesystem
    if hasattr(filesystem, "open_output_stream"):
        inner = getattr(getattr(filesystem, "handler", None), "fs", None)
        if inner is not None and hasattr(inner, "pipe_file"):
            return inner  # pyarrow's wrapper of an fsspec filesystem
        from fsspec.implementations.arrow import ArrowFSWrapper

        return ArrowFSWrapper(filesystem)
    kind = type(filesystem).__name__
    raise ConfigError(f"storage_filesystem must be a filesystem of pyarrow or fsspec, got {kind}")


def opened(url: str) -> FsspecClient:
    """The client for a URI that fsspec can open."""
    try:
        import fsspec
    except ImportError:
        raise ConfigError(f"storage_path {url!r} needs the package fsspec: pip install 'headway[remote]'") from None
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except Exception as error:  # third-party code: it may connect, or lack arguments or libraries
        raise ConfigError(f"storage_path {url!r} cannot be opened: {error}") from None
    return FsspecClient(fs, path)
