"""The protocol of object stores: bytes under keys.

A store is a value: it can be pickled, sent to a worker and used there. ``at("checkpoints")`` is the same store with a
longer prefix. Clients retry transient errors (of the server, a dropped connection, a slow part) with exponential
backoff; callers need not retry.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from headway.core.errors import ConfigError, StorageError

PART = 16 << 20  # bytes per request
CONCURRENCY = 16  # concurrent requests
PART_DEADLINE_S = 60.0  # timeout of one request, which is then retried
TRIES = 4
PAUSE_S = 0.2  # before the second try; doubled before each later try


class ObjectStore(Protocol):
    """Keys are relative to the prefix of the store. Reading a missing key raises FileNotFoundError."""

    @property
    def url(self) -> str:
        """The URI, for messages and comparisons."""

    @property
    def path(self) -> str:
        """The URI without its scheme: the path on ``filesystem``."""

    @property
    def identity(self) -> str:
        """A unique name, also if the same URI refers to different servers."""

    @property
    def filesystem(self) -> Any:
        """A pyarrow filesystem for the same store."""

    def at(self, folder: str) -> Self: ...

    def up(self, levels: int) -> Self:
        """The store with a prefix shorter by ``levels`` parts."""

    def put(self, key: str, data: bytes) -> None: ...

    def create(self, key: str, data: bytes) -> bool:
        """Write the key if it does not exist; False if it exists."""

    def upload(self, key: str, path: Path) -> None: ...

    def read(self, key: str) -> bytes: ...

    def download(self, key: str, path: Path, size: int) -> str:
        """Download to a new file; its sha256."""

    def checksum(self, key: str, size: int) -> str:
        """The sha256 of the content, which is read but not stored."""

    def sizes(self, folder: str = "") -> dict[str, int]:
        """The size of every key below a prefix. Keys are relative to the store, not to ``folder``."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete these keys; missing ones are ignored."""


P = ParamSpec("P")
T = TypeVar("T")


def with_retries(what: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Retry a method on transient errors; then raise StorageError: "<key> could not be <what>"."""

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
                        raise StorageError(f"{where} could not be {what}: {_short(error)}{_hint(error)}") from error
                    time.sleep(PAUSE_S * 2**attempt * random.uniform(0.5, 1.5))
            raise AssertionError("unreachable")

        return tried

    return decorate


def _hint(error: Exception) -> str:
    """The remedy if the client asked the machine for credentials because it found none elsewhere."""
    if "169.254.169.254" not in str(error):
        return ""
    return (
        "; no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or those of your cloud), or "
        "install boto3 to use the profiles of the AWS command line"
    )


def _may_pass(error: Exception) -> bool:
    """Whether a retry could help: not for missing permissions or invalid requests."""
    kind, text = type(error).__name__, str(error)
    if isinstance(error, PermissionError | NotImplementedError | TypeError | ValueError):
        return False
    lasting = ("PermissionDenied", "Unauthenticated", "InvalidPath", "NotSupported", "UnknownConfiguration")
    return not any(word in kind for word in lasting) and "AccessDenied" not in text and "NoSuchBucket" not in text


def _short(error: Exception) -> str:
    """The error in one line, without the debugging output of some libraries."""
    return " ".join((str(error).partition("\n\nDebug source")[0].strip() or repr(error)).split())[:500]
