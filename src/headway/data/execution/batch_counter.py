"""Batches as they are taken, counted: so that others can see that a loop gets on, or what it waits for."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """What wants to know."""

    in_loader: bool  # the loop waits for a batch
    batches: int
    taken: dict[str, int]  # how far each dataset is that is split among ranks: rows of its order, over all epochs


class Watcher(Protocol):
    """Who wants to know how loops use their data."""

    def begin(self, name: Hashable) -> None:
        """A pass begins, or is continued."""

    def ask(self, name: Hashable, *, last: bool) -> None:
        """The loop is through with the batch that it had, and asks for the next one; ``last``: there is none."""

    def end(self, name: Hashable) -> None:
        """The pass is over."""


class Unwatched:
    """Nobody wants to know."""

    def begin(self, name: Hashable) -> None: ...

    def ask(self, name: Hashable, *, last: bool) -> None: ...

    def end(self, name: Hashable) -> None: ...


def counted(batches: Iterator[T], progress: Progress) -> Iterator[T]:
    end = object()
    while True:
        progress.in_loader = True
        try:
            batch: Any = next(batches, end)
        finally:
            progress.in_loader = False
        if batch is end:
            return
        progress.batches += 1
        yield batch
