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

from headway.data.blocks.chunk import (
    Chunk,
    num_bytes,
    num_rows,
)

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
