"""Tracked state, as ``train.track()`` returns it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Tracked(Protocol):
    """State that is saved and restored by itself; each framework has its own kind."""

    def epochs(self, number: int) -> Iterator[int]:
        """The epochs out of so many that are still to be trained."""

    @property
    def num_batches(self) -> int:
        """How many batches the first loop of this epoch has been given, in this process and before a restart.

        For what happens in every n-th of them: ``if state.num_batches % 4 == 0: optimizer.step()``.
        """
