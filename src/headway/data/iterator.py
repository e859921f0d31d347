"""A part of a dataset, as one worker sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headway.data.execution.epochs import Place, Stream
from headway.data.execution.stats import told
from headway.data.operations.iteration import Iterating

if TYPE_CHECKING:
    from headway.data.dataset import Dataset


class DataIterator(Iterating):
    """What ``train.get_dataset_shard`` and ``streaming_split`` give: every iteration is the next epoch of its part."""

    def __init__(self, dataset: Dataset, stream: Stream, device: Any = None) -> None:
        self._dataset = dataset
        self._own = stream
        self._auto = device

    def _stream(self) -> Stream:
        return self._own

    def _device(self) -> Any:
        return self._auto() if callable(self._auto) else self._auto

    def schema(self) -> pa.Schema | None:
        """The columns and their types."""
        return self._dataset.schema()

    def materialize(self) -> Dataset:
        """The whole dataset, all parts of it, in memory."""
        return self._dataset.materialize()

    def count(self) -> int:
        """The rows of this part; in an epoch it may have one more or less, as batches are dealt out."""
        rows, left = divmod(self._dataset.count(), self._own.place.world_size)
        return rows + (self._own.place.rank < left)

    def stats(self) -> str:
        return told(self._own)

    def get_shard(self, rank: int | None = None) -> DataIterator:
        """An older word: this is the shard."""
        return self

    def __repr__(self) -> str:
        place = self._own.place
        return f"DataIterator(part {place.rank + 1} of {place.world_size} of {self._dataset!r})"


def parts(dataset: Dataset, number: int) -> list[DataIterator]:
    """For consumers in one process, or wherever they are pickled to."""
    order = dataset._plan.order(number)
    streams = [
        Stream(dataset._plan, order, Place(rank, number, local_world_size=number), name="split")
        for rank in range(number)
    ]
    return [DataIterator(dataset, stream) for stream in streams]
