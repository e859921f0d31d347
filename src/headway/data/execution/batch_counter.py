"""Counts batches as a loop takes them, to show that it advances and whether it waits for data."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class LoaderProgress(Protocol):
    """What is counted; a heartbeat reports it."""

    in_loader: bool  # the loop waits for a batch
    batches: int
    taken: dict[str, int]  # of each dataset that ranks share: rows of its order, over all epochs


class PassObserver(Protocol):
    """Follows the passes of loops over their data. ``name`` is of the dataset or the loader."""

    def begin(self, name: Hashable) -> None:
        """A pass begins or is resumed."""

    def ask(self, name: Hashable, *, last: bool) -> None:
        """The loop has finished with its batch and requests the next one; ``last``: there is none."""

    def end(self, name: Hashable) -> None:
        """The pass is over."""


class NoObserver:
    """Ignores the passes of a loop."""

    def begin(self, name: Hashable) -> None: ...

    def ask(self, name: Hashable, *, last: bool) -> None: ...

    def end(self, name: Hashable) -> None: ...


def counted(batches: Iterator[T], progress: LoaderProgress) -> Iterator[T]:
    """Pass the batches on; count them in ``progress``, and record when the loop waits for one."""
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
