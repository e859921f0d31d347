"""The protocol of object stores: bytes under keys.

A store is a value: it can be pickled, sent to a worker and used there. ``at("checkpoints")`` is the same store, rooted
at a directory inside it. Clients retry transient errors (a server error, a dropped connection, a slow part) with
growing pauses. Callers need not retry the errors that clients raise.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from headway.core.errors import ConfigError, StorageError

PART = 16 << 20  # bytes transferred in one request
CONCURRENCY = 16  # concurrent requests
PART_DEADLINE_S = 60.0  # time limit of one request, which is then retried
TRIES = 4
PAUSE_S = 0.2  # before the second try; doubled before each later try


class ObjectStore(Protocol):
    """Bytes under keys, which are relative to the store's root. A missing key raises FileNotFoundError."""

    @property
    def url(self) -> str:
        """The URI of the store's root, for messages and comparisons."""

    @property
    def path(self) -> str:
        """The path of the store's root on ``filesystem``: the URI without its scheme."""

    @property
    def identity(self) -> str:
        """A string that is unique to this store: the same URI may refer to different servers."""

    @property
    def filesystem(self) -> Any:
        """A pyarrow filesystem with the same files."""

    def at(self, folder: str) -> Self: ...

    def up(self, levels: int) -> Self:
        """The store rooted this many directories higher."""

    def put(self, key: str, data: bytes) -> None: ...

    def create(self, key: str, data: bytes) -> bool:
        """Write a new object; False if the key already exists."""

    def upload(self, key: str, path: Path) -> None: ...

    def read(self, key: str) -> bytes: ...

    def download(self, key: str, path: Path, size: int) -> str:
        """Download to a new file. Returns its SHA-256."""

    def checksum(self, key: str, size: int) -> str:
        """The SHA-256 of an object. Reads every byte without storing it."""

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Every key below a directory, relative to the store and not to the directory, with its size."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects. Missing ones are ignored."""


P = ParamSpec("P")
T = TypeVar("T")


def with_retries(what: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Retry transient errors. The final StorageError states the key and the failed operation (``what``)."""

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
    """Whether a retry could help. It cannot if permissions are missing or the request is invalid."""
    kind, text = type(error).__name__, str(error)
    if isinstance(error, PermissionError | NotImplementedError | TypeError | ValueError):
        return False
    lasting = ("PermissionDenied", "Unauthenticated", "InvalidPath", "NotSupported", "UnknownConfiguration")
    return not any(word in kind for word in lasting) and "AccessDenied" not in text and "NoSuchBucket" not in text


def _short(error: Exception) -> str:
    """The error in one line, because some libraries add pages of debug output."""
    return " ".join((str(error).partition("\n\nDebug source")[0].strip() or repr(error)).split())[:500]
