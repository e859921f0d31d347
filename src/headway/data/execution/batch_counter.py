"""Counters of the batches that a loop takes, which show that it advances and whether it waits for data."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class LoaderProgress(Protocol):
    """The counters that heartbeats report."""

    in_loader: bool  # the loop waits for a batch
    batches: int
    taken: dict[str, int]  # for each dataset that ranks share, the number of consumed rows of its order over all epochs


class PassObserver(Protocol):
    """An observer of loops' passes over their data. ``name`` identifies the dataset or the loader."""

    def begin(self, name: Hashable) -> None:
        """Record that a pass begins or resumes."""

    def ask(self, name: Hashable, *, last: bool) -> None:
        """Record that the loop has finished its batch and requests the next one; ``last``: there is none."""

    def end(self, name: Hashable) -> None:
        """Record that the pass has ended."""


class NoObserver:
    """An observer that ignores the passes of a loop."""

    def begin(self, name: Hashable) -> None: ...

    def ask(self, name: Hashable, *, last: bool) -> None: ...

    def end(self, name: Hashable) -> None: ...


def counted(batches: Iterator[T], progress: LoaderProgress) -> Iterator[T]:
    """Yield the batches, count them in ``progress``, and record when the loop waits for one."""
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
