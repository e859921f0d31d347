"""Base classes of collate functions that get a batch as an Arrow table, NumPy arrays or a pandas frame."""

from __future__ import annotations

from typing import Any

from headway.data.blocks.chunk import Chunk, arrays_of, frame_of, table_of


class Collate:
    """Subclass one of those below: ``__call__(batch)`` returns what the loop gets."""

    def prepared(self, chunk: Chunk) -> Any:
        raise NotImplementedError

    def __call__(self, batch: Any) -> Any:
        raise NotImplementedError


class ArrowBatchCollateFn(Collate):
    """Gets an Arrow table."""

    def prepared(self, chunk: Chunk) -> Any:
        return table_of(chunk)


class NumpyBatchCollateFn(Collate):
    """Gets a dict of NumPy arrays."""

    def prepared(self, chunk: Chunk) -> Any:
        return arrays_of(chunk)


class PandasBatchCollateFn(Collate):
    """Gets a pandas frame."""

    def prepared(self, chunk: Chunk) -> Any:
        return frame_of(chunk)
