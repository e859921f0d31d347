"""What functions of the user's do to rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from headway.core.errors import DataError
from headway.data.blocks.chunk import (
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
from headway.data.operations.base import Runner, Tell, UserOp, explained


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
class _ByRow(UserOp):
    """A function is called with each row; ``word`` is what the user has called for that."""

    word: ClassVar[str]
    changes_rows: ClassVar[bool] = True

    @property
    def title(self) -> str:
        return f"{self.word}({self.function.name})"

    @property
    def keeps_rows(self) -> bool:
        return not self.changes_rows

    def runner(self) -> Runner:
        call = self.taking(self.function.made())

        def run(chunk: Chunk, tell: Tell) -> Chunk:
            results: list[Any] = []
            with explained(self.title, lambda: tell(len(results))):
                for row in rows_of(chunk):
                    results.append(call(row))
            return self.made(chunk, results, tell)

        return run

    def taking(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The function, and what is done at once with its answer: an error in that names the row, too."""
        return call

    def made(self, chunk: Chunk, results: list[Any], tell: Tell) -> Chunk:
        """What becomes of the rows."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class MapRows(_ByRow):
    word = "map"
    changes_rows = False

    def made(self, chunk: Chunk, results: list[Any], tell: Tell) -> Chunk:
        return _columns(self.title, results, tell) if results else chunk


@dataclass(frozen=True, kw_only=True)
class FlatMap(_ByRow):
    word = "flat_map"

    def taking(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda row: list(call(row))

    def made(self, chunk: Chunk, results: list[Any], tell: Tell) -> Chunk:
        rows = [row for made in results for row in made]
        return _columns(self.title, rows, tell) if rows else sliced(chunk, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Filter(_ByRow):
    word = "filter"

    def taking(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda row: bool(call(row))

    def made(self, chunk: Chunk, results: list[Any], tell: Tell) -> Chunk:
        return kept(chunk, np.asarray(results, bool))


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


def _columns(title: str, results: Sequence[Any], tell: Tell) -> Chunk:
    for number, result in enumerate(results):
        if not isinstance(result, Mapping):
            kind = type(result).__name__
            raise DataError(
                f"{title} must return a dict with a value per column, it returned a {kind} for {tell(number)}"
            )
    with explained(title, lambda: f"{tell(0)} and those after it"):
        return chunk_of_rows(results)
