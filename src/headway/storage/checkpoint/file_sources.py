"""Locations of a checkpoint's files: a directory, an object store, or a dict in memory that becomes files."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headway.core.checkpoints import Manifest
from headway.core.config import local_path, scheme_of
from headway.core.errors import ConfigError, StorageError
from headway.storage import durable_fs
from headway.storage.checkpoint.dict_files import write_dict
from headway.storage.checkpoint.manifest import parse_manifest, read_manifest
from headway.storage.checkpoint.signatures import is_pickle
from headway.storage.fs_ops import copy_tree, json_bytes, parse_json, read_json, write_json
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.client_selection import is_remote, open_store
from headway.storage.object_store.download_cache import copy_of, held
from headway.storage.object_store.verify import contents_of, fetch
from headway.storage.run import layout


class CheckpointLocation(Protocol):
    """Where the files of a checkpoint are, and how they are read."""

    @property
    def path(self) -> str:
        """Path on ``filesystem``; empty for a dict."""

    @property
    def name(self) -> str:
        """A unique name of the location: a path, a URI of a store, or empty for a dict."""

    @property
    def representation(self) -> tuple[str, Any]:
        """Its kind and its value, as ``get_internal_representation`` returns them."""

    @property
    def filesystem(self) -> Any:
        """The pyarrow filesystem of ``path``."""

    def may_have_pickles(self) -> bool:
        """Whether files exist that Headway would open as pickles, or a manifest, which says who has committed them."""

    def directory(self) -> AbstractContextManager[str]:
        """The files in a directory of this machine, for reading; they stay until the context ends."""

    def kept_here(self) -> AbstractContextManager[None]:
        """Keep downloaded files on this machine, for all processes, until the context ends."""

    def copy_to(self, target: Path) -> None:
        """Copy the files to a directory."""

    def manifest(self) -> Manifest | None:
        """The manifest; None if the files were never committed."""

    def metadata(self) -> dict[str, Any]:
        """The user's metadata."""

    def write_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the user's metadata."""


@dataclass(frozen=True)
class DirectoryLocation:
    """Files in a directory."""

    path: str

    @property
    def name(self) -> str:
        return self.path

    @property
    def representation(self) -> tuple[str, Any]:
        return "local_path", self.path

    @property
    def filesystem(self) -> Any:
        import pyarrow.fs

        return pyarrow.fs.LocalFileSystem()

    def may_have_pickles(self) -> bool:
        return os.path.isdir(self.path)

    @contextlib.contextmanager
    def directory(self) -> Iterator[str]:
        self._check()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(durable_fs.shared(Path(self.path)))
            except FileNotFoundError:  # it has just been removed
                self._check()
                raise
            yield self.path

    def kept_here(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def copy_to(self, target: Path) -> None:
        with self.directory():
            copy_tree(Path(self.path), target, leave_out=(layout.MANIFEST, layout.VALIDATION))

    def manifest(self) -> Manifest | None:
        try:
            return read_manifest(Path(self.path))
        except FileNotFoundError:
            return None

    def metadata(self) -> dict[str, Any]:
        path = Path(self.path, layout.METADATA)
        found: dict[str, Any] = read_json(path) if path.is_file() else {}
        return found

    def write_metadata(self, metadata: Mapping[str, Any]) -> None:
        self._check()
        write_json(Path(self.path, layout.METADATA), dict(metadata))

    def _check(self) -> None:
        if not os.path.isdir(self.path):
            raise StorageError(f"checkpoint {self.path} does not exist (deleted, or a path of another machine?)")


@dataclass(frozen=True)
class StoreLocation:
    """Files in an object store; ``store`` is rooted at the checkpoint."""

    store: ObjectStore

    @property
    def path(self) -> str:
        return self.store.path

    @property
    def name(self) -> str:
        return self.store.url

    @property
    def representation(self) -> tuple[str, Any]:
        return "uri", self.store.url

    @property
    def filesystem(self) -> Any:
        return self.store.filesystem

    def may_have_pickles(self) -> bool:
        return any(name == layout.MANIFEST or is_pickle(name) for name in self.store.sizes())

    @contextlib.contextmanager
    def directory(self) -> Iterator[str]:
        with copy_of(self.store) as copied:
            yield str(copied)

    def kept_here(self) -> AbstractContextManager[None]:
        return held(self.store)

    def copy_to(self, target: Path) -> None:
        fetch(self.store, contents_of(self.store), target)

    def manifest(self) -> Manifest | None:
        try:
            return parse_manifest(f"{self.store.url}/{layout.MANIFEST}", self.store.read(layout.MANIFEST))
        except FileNotFoundError:
            return None

    def metadata(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = parse_json(f"{self.store.url}/{layout.METADATA}", self.store.read(layout.METADATA))
        except FileNotFoundError:
            return {}
        return found

    def write_metadata(self, metadata: Mapping[str, Any]) -> None:
        self.store.put(layout.METADATA, json_bytes(dict(metadata)))


@dataclass(frozen=True, eq=False)
class DictLocation:
    """A dict in memory, until it is reported or written."""

    data: dict[Any, Any]

    @property
    def path(self) -> str:
        return ""

    @property
    def name(self) -> str:
        return ""

    @property
    def representation(self) -> tuple[str, Any]:
        return "data_dict", self.data

    @property
    def filesystem(self) -> Any:
        return DirectoryLocation("").filesystem

    def may_have_pickles(self) -> bool:
        return False

    @contextlib.contextmanager
    def directory(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="checkpoint_") as folder:
            write_dict(Path(folder), self.data)
            yield folder

    def kept_here(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def copy_to(self, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        write_dict(target, self.data)

    def manifest(self) -> Manifest | None:
        return None

    def metadata(self) -> dict[str, Any]:
        return {}

    def write_metadata(self, metadata: Mapping[str, Any]) -> None:
        raise StorageError("a dict checkpoint in memory cannot have metadata: put it into the dict")


def location_of(path: str | os.PathLike[str], filesystem: Any = None) -> CheckpointLocation:
    """The location of files at a path or URI, or at a path of ``filesystem``."""
    if is_remote(path, filesystem):
        return StoreLocation(open_store(path, filesystem))
    named = local_path(path) if scheme_of(os.fspath(path)) else os.path.expanduser(os.fspath(path))
    return DirectoryLocation(os.path.abspath(named))


def location_of_dict(data: Mapping[Any, Any]) -> DictLocation:
    """The location of a user's dict."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"Checkpoint.from_dict takes a dict, got {type(data).__name__}")
    return DictLocation(dict(data))
