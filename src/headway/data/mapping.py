"""What functions of the user's do to rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.core.errors import DataError
from headway.data.chunks import (
    Chunk,
    chunk_of_result,
    chunk_of_rows,
    formatted,
    joined,
    kept,
    num_rows,
    rows_of,
    sliced,
)
from headway.data.ops import Runner, Tell, UserOp, explained


@dataclass(frozen=True, kw_only=True)
class MapBatches(UserOp):
    batch_size: int | None = None
    batch_format: str | None = "default"
    keeps: bool = True

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
        call = self.function.made()

        def run(chunk: Chunk, tell: Tell) -> Chunk:
            size, total = self.batch_size or max(1, num_rows(chunk)), num_rows(chunk)
            parts = []
            for first in range(0, total, size):
                part = sliced(chunk, first, first + size) if size < total else chunk
                last = min(first + size, total) - 1
                with explained(self.title, lambda a=first, b=last: f"{tell(a)} to {tell(b)}"):  # type: ignore[misc]
                    result = call(formatted(part, self.batch_format))
                    parts += self._results(result, num_rows(part))
            return joined(parts) if parts else sliced(chunk, 0, 0)

        return run

    def _results(self, result: Any, rows: int) -> list[Chunk]:
        if inspect.isgenerator(result):
            chunks = [chunk_of_result(each) for each in result]
        else:
            chunks = [chunk_of_result(result)]
        now = sum(map(num_rows, chunks))
        if self.keeps and now != rows:
            raise DataError(
                f"it made {now:,} rows of {rows:,}: a function that changes the number of rows needs "
                "map_batches(..., keeps_rows=False)"
            )
        return chunks


@dataclass(frozen=True, kw_only=True)
class MapRows(UserOp):
    @property
    def title(self) -> str:
        return f"map({self.function.name})"

    def runner(self) -> Runner:
        call = self.function.made()

        def run(chunk: Chunk, tell: Tell) -> Chunk:
            results = _of_each(self.title, call, chunk, tell)
            return _columns(self.title, results, tell) if results else chunk

        return run


@dataclass(frozen=True, kw_only=True)
class FlatMap(UserOp):
    @property
    def title(self) -> str:
        return f"flat_map({self.function.name})"

    @property
    def keeps_rows(self) -> bool:
        return False

    def runner(self) -> Runner:
        call = self.function.made()

        def run(chunk: Chunk, tell: Tell) -> Chunk:
            made = _of_each(self.title, lambda row: list(call(row)), chunk, tell)
            results = [row for rows in made for row in rows]
            return _columns(self.title, results, tell) if results else sliced(chunk, 0, 0)

        return run


@dataclass(frozen=True, kw_only=True)
class Filter(UserOp):
    @property
    def title(self) -> str:
        return f"filter({self.function.name})"

    @property
    def keeps_rows(self) -> bool:
        return False

    def runner(self) -> Runner:
        call = self.function.made()

        def run(chunk: Chunk, tell: Tell) -> Chunk:
            return kept(chunk, np.asarray(_of_each(self.title, lambda row: bool(call(row)), chunk, tell), bool))

        return run


@dataclass(frozen=True, kw_only=True)
class AddColumn(UserOp):
    column: str
    batch_format: str | None = "pandas"

    @property
    def title(self) -> str:
        return f"add_column({self.column})"

    @property
    def by_row(self) -> bool:
        return False

    def runner(self) -> Runner:
        call = self.function.made()

        def run(chunk: Chunk, tell: Tell) -> Chunk:
            with explained(self.title, lambda: f"{tell(0)} and those after it"):
                added = chunk_of_result({self.column: call(formatted(chunk, self.batch_format))})
                if num_rows(added) != num_rows(chunk):
                    raise DataError(f"it made {num_rows(added):,} values for {num_rows(chunk):,} rows")
            return {**chunk, **added}

        return run


def _of_each(title: str, call: Callable[[Any], Any], chunk: Chunk, tell: Tell) -> list[Any]:
    """What a function makes of each row; an error says which one it was."""
    results: list[Any] = []
    with explained(title, lambda: tell(len(results))):
        for row in rows_of(chunk):
            results.append(call(row))
    return results


def _columns(title: str, results: Sequence[Any], tell: Tell) -> Chunk:
    for number, result in enumerate(results):
        if not isinstance(result, Mapping):
            kind = type(result).__name__
            raise DataError(
                f"{title} must return a dict with a value per column, it returned a {kind} for {tell(number)}"
            )
    with explained(title, lambda: f"{tell(0)} and those after it"):
        return chunk_of_rows(results)
