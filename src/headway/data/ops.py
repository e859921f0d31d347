"""What is done to rows on their way: values that say it, and how it is done to a chunk.

An operation keeps the number of rows, or says that it does not: where it does, every row's place in the order is known
before anything is read, and training can go on anywhere. A function that returns another number than it said is
refused, with the word that would have made it right.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headway.core.errors import DataError
from headway.data.chunks import (
    Chunk,
    chunk_of,
    chunk_of_result,
    chunk_of_rows,
    formatted,
    joined,
    kept,
    num_bytes,
    num_rows,
    rows_of,
    sliced,
    table_of,
)
from headway.data.parquet import no_column

Tell = Callable[[int], str]  # what a person would call the n-th row of a chunk
Runner = Callable[[Chunk, Tell], Chunk]


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function of the user's with what it is called with; a class is made an object first, one per thread."""

    call: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    constructor_args: tuple[Any, ...] = ()
    constructor_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        call = self.call.func if isinstance(self.call, functools.partial) else self.call
        name: str = getattr(call, "__name__", type(call).__name__)
        return name

    @property
    def is_class(self) -> bool:
        return inspect.isclass(self.call)

    def made(self) -> Callable[[Any], Any]:
        call = self.call(*self.constructor_args, **self.constructor_kwargs) if self.is_class else self.call
        if not self.args and not self.kwargs:
            return call  # type: ignore[no-any-return]
        return lambda value: call(value, *self.args, **self.kwargs)


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation. ``runner`` makes what does it; that may hold state, and belongs to one thread."""

    @property
    def title(self) -> str:
        return type(self).__name__.lower()

    @property
    def keeps_rows(self) -> bool:
        return True

    @property
    def is_users(self) -> bool:
        """Whether code of the user's runs in it."""
        return False

    def runner(self) -> Runner:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class UserOp(Op):
    function: Function
    concurrency: int | None = None
    executor: str | None = None

    @property
    def is_users(self) -> bool:
        return True

    @property
    def by_row(self) -> bool:
        return True


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
            results: list[Any] = []
            rows = rows_of(chunk)
            if not rows:
                return chunk
            with explained(self.title, lambda: tell(len(results))):
                for row in rows:
                    results.append(call(row))
            return _columns(self.title, results, tell)

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
            results: list[Any] = []
            done = 0
            with explained(self.title, lambda: tell(done)):
                for row in rows_of(chunk):
                    results.extend(call(row))
                    done += 1
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
            mask: list[bool] = []
            with explained(self.title, lambda: tell(len(mask))):
                for row in rows_of(chunk):
                    mask.append(bool(call(row)))
            return kept(chunk, np.asarray(mask, bool))

        return run


@dataclass(frozen=True, kw_only=True)
class FilterBy(Op):
    """By an Arrow expression: no Python for every row."""

    expression: Any

    @property
    def title(self) -> str:
        return f"filter({self.expression})"

    @property
    def keeps_rows(self) -> bool:
        return False

    def runner(self) -> Runner:
        def run(chunk: Chunk, tell: Tell) -> Chunk:
            try:
                return chunk_of(table_of(chunk).filter(self.expression))
            except (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError) as error:
                raise DataError(f"{self.title} cannot be applied to the columns {', '.join(chunk)}: {error}") from error

        return run


@dataclass(frozen=True, kw_only=True)
class Select(Op):
    columns: tuple[str, ...]

    @property
    def title(self) -> str:
        return "select_columns"

    def runner(self) -> Runner:
        return lambda chunk, tell: {name: _column(chunk, name) for name in self.columns}


@dataclass(frozen=True, kw_only=True)
class Drop(Op):
    columns: tuple[str, ...]

    @property
    def title(self) -> str:
        return "drop_columns"

    def runner(self) -> Runner:
        def run(chunk: Chunk, tell: Tell) -> Chunk:
            for name in self.columns:
                _column(chunk, name)
            return {name: column for name, column in chunk.items() if name not in self.columns}

        return run


@dataclass(frozen=True, kw_only=True)
class Rename(Op):
    names: Mapping[str, str] | tuple[str, ...]

    @property
    def title(self) -> str:
        return "rename_columns"

    def runner(self) -> Runner:
        return lambda chunk, tell: self._renamed(chunk)

    def _renamed(self, chunk: Chunk) -> Chunk:
        if isinstance(self.names, tuple):
            if len(self.names) != len(chunk):
                raise DataError(f"rename_columns needs {len(chunk)} names, one per column, got {len(self.names)}")
            names = list(self.names)
        else:
            for name in self.names:
                _column(chunk, name)
            names = [self.names.get(name, name) for name in chunk]
        if len(set(names)) < len(names):
            raise DataError(f"rename_columns would give two columns the same name: {', '.join(names)}")
        return dict(zip(names, chunk.values(), strict=True))


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


def _column(chunk: Chunk, name: str) -> Any:
    if name not in chunk:
        raise no_column(name, list(chunk), "this dataset")
    return chunk[name]


def _columns(title: str, results: Sequence[Any], tell: Tell) -> Chunk:
    for number, result in enumerate(results):
        if not isinstance(result, Mapping):
            kind = type(result).__name__
            raise DataError(
                f"{title} must return a dict with a value per column, it returned a {kind} for {tell(number)}"
            )
    with explained(title, lambda: f"{tell(0)} and those after it"):
        return chunk_of_rows(results)


@contextlib.contextmanager
def explained(title: str, row: Callable[[], str]) -> Iterator[None]:
    """An error in here keeps its type and its traceback, and says which row it was about."""
    try:
        yield
    except Exception as error:
        if not any(note.startswith("headway: in ") for note in getattr(error, "__notes__", [])):
            annotate(error, f"headway: in {title}, for {row()}")
        raise


def annotate(error: BaseException, text: str) -> None:
    """Say which row it was, and how to have it again if its number is known."""
    error.add_note(text)
    if found := _NUMBER.search(text):
        error.add_note(f"headway: to have it again, alone: dataset.probe({found[1]})")


_NUMBER = re.compile(r"row (\d+) of the dataset")


# --- several in a row ---


@dataclass
class Tally:
    """What an operation has done so far."""

    title: str
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(self, rows: int, size: int, seconds: float) -> None:
        self.rows += rows
        self.bytes += size
        self.seconds += seconds


class Chain:
    """Operations one after the other, in one thread."""

    def __init__(self, ops: Sequence[Op], tallies: Sequence[Tally] | None = None) -> None:
        self._runners = [op.runner() for op in ops]
        self._tallies = tallies or [Tally(op.title) for op in ops]
        self._keep = [op.keeps_rows for op in ops]

    def __call__(self, chunk: Chunk, tell: Tell = lambda number: "some row") -> Chunk:
        for runner, tally, keeps in zip(self._runners, self._tallies, self._keep, strict=True):
            began = time.perf_counter()
            chunk = runner(chunk, tell)
            tally.add(num_rows(chunk), num_bytes(chunk), time.perf_counter() - began)
            if not keeps:
                tell = _unknown
        return chunk


def _unknown(number: int) -> str:
    return "one of the rows that were left"
