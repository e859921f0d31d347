"""The protocol of object stores: bytes under keys.

A store is a value: it can be pickled, sent to a worker and used there. ``at("checkpoints")`` is the same store, seen
from a directory below. Clients retry errors that may pass (of the server, a dropped connection, a slow part) with
growing pauses; an error that they raise has been retried enough.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from headway.core.errors import ConfigError, StorageError

PART = 16 << 20  # bytes that travel in one request
CONCURRENCY = 16  # requests at the same time
PART_DEADLINE_S = 60.0  # for one request; then it is tried again
TRIES = 4
PAUSE_S = 0.2  # before the second try; twice as long before each further one


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


P = ParamSpec("P")
T = TypeVar("T")


def with_retries(what: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
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
