"""What ``iter_batches`` and its relatives give: made once, iterated as often as there are epochs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.data.execution.epochs import Stream, Wanted


class Batches:
    """Each ``iter()`` is the next epoch. ``len()`` is exact, where it can be known."""

    def __init__(self, stream: Stream, wanted: Wanted) -> None:
        self._stream = stream
        self._wanted = wanted

    def __iter__(self) -> Iterator[Any]:
        return self._stream.iterate(self._wanted)

    def __len__(self) -> int:
        return self._stream.num_batches(self._wanted)

    def __repr__(self) -> str:
        return f"Batches(batch_size={self._wanted.batch_size})"
