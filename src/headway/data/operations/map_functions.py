"""Operations that call a user's function: map, flat_map and filter by row, map_batches and add_column by batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.core import phrases
from headway.core.errors import DataError
from headway.data.blocks.chunk import (
    Chunk,
    check_format,
    chunk_of_result,
    chunk_of_rows,
    formatted,
    joined,
    kept,
    num_rows,
    rows_of,
    sliced,
)
from headway.data.operations.base import RowName, Runner, UserOp, explained


@dataclass(frozen=True, kw_only=True)
class MapBatches(UserOp):
    batch_size: int | None = None
    batch_format: str | None = "default"
    keeps: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_format(self.batch_format)
        if self.batch_size is not None and (not isinstance(self.batch_size, int) or self.batch_size < 1):
            raise DataError(f"batch_size must be a positive number or None, got {self.batch_size!r}")

    @property
    def title(self) -> str:
        return f"map_batches({self.function.name})"

    @property
    def keeps_rows(self) -> bool:
        return self.keeps

    @property
    def by_row(self) -> bool:
        return False

    def runner(self) -> Runner:
        call = self.function.instance()

        def run(chunk: Chunk, row_name: RowName) -> Chunk:
            total = num_rows(chunk)
            size = self.batch_size or max(1, total)
            parts = []
            for first in range(0, total, size):
                part = sliced(chunk, first, first + size) if size < total else chunk
                last = min(first + size, total) - 1
                with explained(self.title, lambda a=first, b=last: f"{row_name(a)} to {row_name(b)}"):  # type: ignore[misc]
                    parts += self._chunks(call(formatted(part, self.batch_format)), num_rows(part))
            return joined(parts) if parts else sliced(chunk, 0, 0)

        return run

    def _chunks(self, result: Any, rows: int) -> list[Chunk]:
        """Check and convert what the function returned or yielded."""
        chunks = [chunk_of_result(each, self.title) for each in (result if inspect.isgenerator(result) else (result,))]
        now = sum(map(num_rows, chunks))
        if self.keeps and now != rows:
            raise DataError(
                f"{self.title} returned {now:,} rows for {rows:,}: a function that changes the number of rows needs "
                "map_batches(..., keeps_rows=False)"
            )
        return chunks


@dataclass(frozen=True, kw_only=True)
class MapRows(UserOp):
    @property
    def title(self) -> str:
        return f"map({self.function.name})"

    def runner(self) -> Runner:
        def finish(chunk: Chunk, results: list[Any], row_name: RowName) -> Chunk:
            return _columns(self.title, results, row_name) if results else chunk

        return _by_row(self.title, self.function.instance(), finish)


@dataclass(frozen=True, kw_only=True)
class FlatMap(UserOp):
    @property
    def title(self) -> str:
        return f"flat_map({self.function.name})"

    @property
    def keeps_rows(self) -> bool:
        return False

    def runner(self) -> Runner:
        call = self.function.instance()

        def finish(chunk: Chunk, results: list[Any], row_name: RowName) -> Chunk:
            rows = [row for made in results for row in made]
            return _columns(self.title, rows, row_name) if rows else sliced(chunk, 0, 0)

        return _by_row(self.title, lambda row: list(call(row)), finish)


@dataclass(frozen=True, kw_only=True)
class Filter(UserOp):
    @property
    def title(self) -> str:
        return f"filter({self.function.name})"

    @property
    def keeps_rows(self) -> bool:
        return False

    @property
    def keeps_columns(self) -> bool:
        return True

    def runner(self) -> Runner:
        call = self.function.instance()

        def finish(chunk: Chunk, results: list[Any], row_name: RowName) -> Chunk:
            return kept(chunk, np.asarray(results, bool))

        return _by_row(self.title, lambda row: bool(call(row)), finish)


@dataclass(frozen=True, kw_only=True)
class AddColumn(UserOp):
    column: str
    batch_format: str | None = "pandas"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_format(self.batch_format)

    @property
    def title(self) -> str:
        return f"add_column({self.column})"

    @property
    def by_row(self) -> bool:
        return False

    def runner(self) -> Runner:
        call = self.function.instance()

        def run(chunk: Chunk, row_name: RowName) -> Chunk:
            with explained(self.title, lambda: f"{row_name(0)} and the following rows"):
                added = chunk_of_result({self.column: call(formatted(chunk, self.batch_format))}, self.title)
                if num_rows(added) != num_rows(chunk):
                    raise DataError(f"{self.title} returned {num_rows(added):,} values for {num_rows(chunk):,} rows")
            return {**chunk, **added}

        return run


def _by_row(title: str, call: Callable[[Any], Any], finish: Callable[[Chunk, list[Any], RowName], Chunk]) -> Runner:
    """Call a function with each row and make a chunk of the results; an error in the function names its row."""

    def run(chunk: Chunk, row_name: RowName) -> Chunk:
        results: list[Any] = []
        with explained(title, lambda: row_name(len(results))):
            for row in rows_of(chunk):
                results.append(call(row))
        return finish(chunk, results, row_name)

    return run


def _columns(title: str, results: Sequence[Any], row_name: RowName) -> Chunk:
    for number, result in enumerate(results):
        if not isinstance(result, Mapping):
            kind = phrases.a_kind(result)
            raise DataError(
                f"{title} must return a dict with one value per column, but returned {kind} for {row_name(number)}"
            )
    with explained(title, lambda: f"{row_name(0)} and the following rows"):
        return chunk_of_rows(results)
