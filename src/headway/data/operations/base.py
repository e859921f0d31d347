"""Operations on rows: the objects that describe operations, and the chain that applies several to a chunk.

An operation keeps the number of rows or declares that it does not. If all operations keep it, the position of every
row in the order is known before anything is read, and training can resume anywhere. If a function unexpectedly returns
a different number of rows, it fails with an error that names the option that allows this.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.core.errors import DataError
from headway.data.blocks.chunk import Chunk, num_bytes, num_rows
from headway.data.datasource.base import refuse_unknown

RowName = Callable[[int], str]  # describes the n-th row of a chunk in error messages
Runner = Callable[[Chunk, RowName], Chunk]

EXECUTORS = (None, "thread", "process")


@dataclass(frozen=True, kw_only=True)
class Function:
    """A user's function with its arguments; a class is instantiated first, once per thread."""

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
    def source(self) -> str:
        """The source code; empty if there is none."""
        call = self.call.func if isinstance(self.call, functools.partial) else self.call
        try:
            return inspect.getsource(call if inspect.isroutine(call) or inspect.isclass(call) else type(call))
        except (OSError, TypeError):
            return ""

    def instance(self) -> Callable[[Any], Any]:
        """Return the callable for rows or batches."""
        call = self.call
        if inspect.isclass(call):
            call = call(*self.constructor_args, **self.constructor_kwargs)
        if not self.args and not self.kwargs:
            return call  # type: ignore[no-any-return]
        return lambda value: call(value, *self.args, **self.kwargs)


def user_function(
    fn: Any,
    fn_args: Sequence[Any] = (),
    fn_kwargs: Mapping[str, Any] | None = None,
    fn_constructor_args: Sequence[Any] = (),
    fn_constructor_kwargs: Mapping[str, Any] | None = None,
    **resources: object,
) -> Function:
    """Check the arguments of ``map`` and similar methods. ``resources`` are options of Ray's scheduler."""
    if not callable(fn):
        raise DataError(f"fn must be a function or a class, got {fn!r}")
    refuse_unknown(resources, depth=2)
    for name, given in (("fn_kwargs", fn_kwargs), ("fn_constructor_kwargs", fn_constructor_kwargs)):
        if given is not None and not isinstance(given, Mapping):
            raise DataError(f"{name} must be a dict of keyword arguments, got {given!r}")
    for name, args in (("fn_args", fn_args), ("fn_constructor_args", fn_constructor_args)):
        if args is not None and not isinstance(args, list | tuple):
            raise DataError(f"{name} must be a list or a tuple of arguments, got {args!r}")
    return Function(
        call=fn,
        args=tuple(fn_args or ()),
        kwargs=dict(fn_kwargs or {}),
        constructor_args=tuple(fn_constructor_args or ()),
        constructor_kwargs=dict(fn_constructor_kwargs or {}),
    )


@dataclass(frozen=True, kw_only=True)
class Op(abc.ABC):
    """One operation. ``runner`` makes the function that applies it, which may have state and belongs to one thread."""

    @property
    def title(self) -> str:
        return type(self).__name__.lower()

    @property
    def keeps_rows(self) -> bool:
        return True

    @property
    def batch_size(self) -> int | None:
        """The preferred number of rows per call; None: any number."""
        return None

    @property
    def is_users(self) -> bool:
        """Whether the operation runs a user's code."""
        return False

    @property
    def keeps_columns(self) -> bool:
        """Whether rows are guaranteed to keep their columns, whatever a user's function does."""
        return False

    @property
    def num_threads(self) -> int | None:
        """The maximum number of threads that run the operation; None: all threads of the worker."""
        return None

    @property
    def executor(self) -> str | None:
        """Where the operation runs: "thread" or "process"; None: whichever is faster."""
        return None

    @property
    def by_row(self) -> bool:
        """Whether the operation calls a user's function with each row."""
        return False

    @abc.abstractmethod
    def runner(self) -> Runner:
        """Return a function that applies the operation to a chunk."""


@dataclass(frozen=True, kw_only=True)
class UserOp(Op):
    """An operation that calls a user's function. A ``concurrency`` of (min, max) means max threads."""

    function: Function
    concurrency: int | tuple[int, ...] | None = None
    executor: str | None = None

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise DataError(
                f'executor must be "thread", "process" or None (the faster of the two), got {self.executor!r}'
            )
        number = self.num_threads
        if number is not None and not (isinstance(number, int) and number >= 1):
            raise DataError(f"concurrency must be a positive number or (min, max), got {self.concurrency!r}")

    @property
    def num_threads(self) -> int | None:
        if isinstance(self.concurrency, tuple) and self.concurrency:
            return self.concurrency[-1]
        return self.concurrency  # type: ignore[return-value]  # an empty tuple is refused

    @property
    def is_users(self) -> bool:
        return True

    @property
    def by_row(self) -> bool:
        return True


@contextlib.contextmanager
def explained(title: str, row: Callable[[], str]) -> Iterator[None]:
    """Add a note to errors raised inside that names their row; type and traceback are kept."""
    try:
        yield
    except Exception as error:
        if not any(note.startswith("headway: in ") for note in getattr(error, "__notes__", [])):
            annotate(error, f"headway: in {title}, for {row()}")
        raise


def annotate(error: BaseException, text: str) -> None:
    """Add a note with the row of an error, and how to run that row again if its number is known."""
    error.add_note(text)
    if found := _ROW_NUMBER.search(text):
        error.add_note(f"headway: to run only this row: dataset.probe({found[1]})")


_ROW_NUMBER = re.compile(r"row (\d+) of the dataset")


# --- several operations ---


@dataclass
class OpTally:
    """Counts of what an operation has done so far."""

    title: str
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(self, rows: int, size: int, seconds: float) -> None:
        self.rows += rows
        self.bytes += size
        self.seconds += seconds


class Chain:
    """A chain of operations, applied in order in one thread."""

    def __init__(self, ops: Sequence[Op], tallies: Sequence[OpTally] | None = None) -> None:
        self._runners = [op.runner() for op in ops]
        self._tallies = tallies or [OpTally(op.title) for op in ops]
        self._keep = [op.keeps_rows for op in ops]

    def __call__(self, chunk: Chunk, row_name: RowName = lambda number: "some row") -> Chunk:
        for runner, tally, keeps in zip(self._runners, self._tallies, self._keep, strict=True):
            began = time.perf_counter()
            chunk = runner(chunk, row_name)
            tally.add(num_rows(chunk), num_bytes(chunk), time.perf_counter() - began)
            if not keeps:
                row_name = _unknown
        return chunk


def _unknown(number: int) -> str:
    return "one of the remaining rows"
