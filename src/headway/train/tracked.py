"""Tracked state, as ``train.track()`` returns it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Tracked(Protocol):
    """Automatically saved and restored state; each framework has its own implementation."""

    def epochs(self, number: int) -> Iterator[int]:
        """Yield the epochs below ``number`` that remain to be trained."""

    @property
    def num_batches(self) -> int:
        """The number of batches that the first loop of this epoch has received, in this process and before a restart.

        Use it for actions on every n-th batch: ``if state.num_batches % 4 == 0: optimizer.step()``.
        """
