"""Bytes under keys: all that we ask of an object store, and how one is found.

A store is a value: it can be pickled, sent to a worker, and opened there. ``at("checkpoints")`` is the same store, seen
from a folder below. What passes (an error of the server's, a dropped connection, a part that takes too long) is tried
again in here, with growing pauses; what comes out of here has been tried often enough.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from headway.core.config import is_local_filesystem, scheme_of
from headway.core.errors import ConfigError, StorageError

PART = 16 << 20  # bytes that travel in one request
CONCURRENCY = 16  # requests at the same time
PART_DEADLINE_S = 60.0  # for one request; then it is tried again
TRIES = 4
PAUSE_S = 0.2  # before the second try; twice as long before each further one

_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl")


class ObjectStore(Protocol):
    """Keys are relative to where the store begins. A key that is not there: FileNotFoundError."""

    @property
    def url(self) -> str:
        """Where this is, for people and for comparisons."""

    @property
    def path(self) -> str:
        """The same without its scheme: what ``filesystem`` calls it."""

    @property
    def identity(self) -> str:
        """What no other store has: the same url may mean different servers."""

    @property
    def filesystem(self) -> Any:
        """A pyarrow filesystem that sees the same."""

    def at(self, folder: str) -> Self: ...

    def up(self, levels: int) -> Self:
        """So many folders above."""

    def put(self, key: str, data: bytes) -> None: ...

    def create(self, key: str, data: bytes) -> bool:
        """Only if there is nothing yet; False if there is."""

    def upload(self, key: str, path: Path) -> None: ...

    def read(self, key: str) -> bytes: ...

    def download(self, key: str, path: Path, size: int) -> str:
        """Into a new file; its sha256."""

    def checksum(self, key: str, size: int) -> str:
        """Its sha256; every byte is read, and none kept."""

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Every key below a folder (relative to the store, not to the folder), with its size."""

    def delete(self, keys: Iterable[str]) -> None:
        """Those that are there."""


def open_store(path: str | os.PathLike[str], filesystem: Any = None) -> ObjectStore:
    """The store that an address names (``s3://bucket/runs``), or that lies on a filesystem of the user's own."""
    text = os.fspath(path)
    if filesystem is not None:
        from headway.storage.object_store.fsspec_client import FsspecClient, as_fsspec

        return FsspecClient(as_fsspec(filesystem), text.strip("/") if not text.startswith("/") else text.rstrip("/"))
    if scheme_of(text) in _OBJECT_STORES:
        from headway.storage.object_store.obstore_client import ObstoreClient

        return ObstoreClient.parse(text)
    from headway.storage.object_store.fsspec_client import opened

    return opened(text)


def is_remote(path: str | os.PathLike[str] | None, filesystem: Any = None) -> bool:
    """Whether this needs a store; local folders do not, however they are called."""
    if filesystem is not None:
        return not is_local_filesystem(filesystem)
    return path is not None and scheme_of(os.fspath(path)) not in ("", "file")


P = ParamSpec("P")
T = TypeVar("T")


def patiently(what: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Try again what may pass; in the end, a StorageError that says ``what`` could not be done, and to which key."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def tried(*args: P.args, **kwargs: P.kwargs) -> T:
            for attempt in range(TRIES):
                try:
                    return function(*args, **kwargs)
                except (FileNotFoundError, IsADirectoryError, ConfigError, StorageError):
                    raise
                except Exception as error:
                    if attempt + 1 == TRIES or not _may_pass(error):
                        store, *rest = args
                        where = "/".join(str(part) for part in (getattr(store, "url", ""), *rest[:1]) if part)
                        raise StorageError(f"{where} could not be {what}: {_short(error)}") from error
                    time.sleep(PAUSE_S * 2**attempt * random.uniform(0.5, 1.5))
            raise AssertionError("unreachable")

        return tried

    return decorate


def _may_pass(error: Exception) -> bool:
    """Whether another try could help: not if we may not, or if what we ask for is nonsense."""
    kind, text = type(error).__name__, str(error)
    if isinstance(error, PermissionError | NotImplementedError | TypeError | ValueError):
        return False
    lasting = ("PermissionDenied", "Unauthenticated", "InvalidPath", "NotSupported", "UnknownConfiguration")
    return not any(word in kind for word in lasting) and "AccessDenied" not in text and "NoSuchBucket" not in text


def _short(error: Exception) -> str:
    """In one line: some libraries add pages of debugging."""
    return " ".join((str(error).partition("\n\nDebug source")[0].strip() or repr(error)).split())[:500]
