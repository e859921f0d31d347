"""Base classes of collate functions that receive a batch as an Arrow table, NumPy arrays or a pandas DataFrame."""

from __future__ import annotations

from typing import Any

from headway.data.blocks.chunk import Chunk, arrays_of, frame_of, table_of


class Collate:
    """The base class of the collate classes below. ``__call__(batch)`` returns what the training loop receives."""

    def prepared(self, chunk: Chunk) -> Any:
        raise NotImplementedError

    def __call__(self, batch: Any) -> Any:
        raise NotImplementedError


class ArrowBatchCollateFn(Collate):
    """A collate function that receives an Arrow table."""

    def prepared(self, chunk: Chunk) -> Any:
        return table_of(chunk)


class NumpyBatchCollateFn(Collate):
    """A collate function that receives a dict of NumPy arrays."""

    def prepared(self, chunk: Chunk) -> Any:
        return arrays_of(chunk)


class PandasBatchCollateFn(Collate):
    """A collate function that receives a pandas DataFrame."""

    def prepared(self, chunk: Chunk) -> Any:
        return frame_of(chunk)
