"""The plan of a dataset: a picklable value that contains a source, the operations on its rows, and the shuffling."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headway.data.blocks.chunk import Chunk
from headway.data.datasource.base import DataSource, check_columns, digest
from headway.data.datasource.memory import LazyTables
from headway.data.datasource.views import MappedView, ShuffledView
from headway.data.operations.base import Chain, Op, RowName, UserOp
from headway.data.operations.columns import Select
from headway.data.sharding.row_order import Order, Shuffle

WINDOW_BYTES = 16 << 20  # bytes of rows that are shuffled together
MIN_WINDOW_ROWS = 1024
DEFAULT_WINDOW_ROWS = 1 << 14  # rows; used if the size of a row is unknown


@dataclass(frozen=True)
class Shuffling:
    """How rows are shuffled. ``seed`` None: the run's. ``window``: rows shuffled together; None: about 16 MiB."""

    how: Shuffle = "no"
    seed: int | None = None
    window: int | None = None


@dataclass(frozen=True)
class Plan:
    source: DataSource
    ops: tuple[Op, ...] = ()
    shuffling: Shuffling = Shuffling()

    def then(self, op: Op) -> Plan:
        return replace(self, ops=(*self.ops, op))

    @property
    def keeps_rows(self) -> bool:
        """Whether the plan has as many rows as its source."""
        return self.source.exact and all(op.keeps_rows for op in self.ops)

    @property
    def num_rows(self) -> int | None:
        return self.source.num_rows if self.keeps_rows else None

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of the source; None if operations may change them."""
        return None if self.ops else self.source.schema

    @functools.cached_property
    def columns(self) -> tuple[str, ...] | None:
        """The columns of the source that are needed, if the first operation selects columns; None: all."""
        first = self.ops[0] if self.ops else None
        return first.columns if isinstance(first, Select) and self.source.schema is not None else None

    def check(self) -> None:
        """Raise DataError, on the driver, for columns that the source does not have."""
        schema = self.source.schema
        if self.columns is not None and schema is not None:
            check_columns(self.columns, schema.names, self.source.name)

    @property
    def window_rows(self) -> int:
        """The number of rows that are shuffled together."""
        if self.shuffling.window is not None:
            return self.shuffling.window
        row = self.source.row_bytes
        return max(MIN_WINDOW_ROWS, WINDOW_BYTES // row) if row else DEFAULT_WINDOW_ROWS

    def order(self, lanes: int, seed: int = 0, window: int | None = None) -> Order:
        """Return the order of the rows for ``lanes`` workers. The shuffle's own seed takes precedence over ``seed``."""
        how = self.shuffling.how
        chosen = seed if self.shuffling.seed is None else self.shuffling.seed
        return Order(self.source.counts, lanes, how, window or (self.window_rows if how == "window" else 1), chosen)

    def fingerprint(self) -> str:
        """Return a string that identifies the rows and their order. It does not depend on the code of functions.

        :func:`is_same` compares two of them.
        """
        how, contents = self.shuffling, self.source.contents()
        rows = digest(self.source.fingerprint(), [op.title for op in self.ops if not op.keeps_rows], how.how, how.seed)
        return f"{rows}-{contents}" if contents else rows

    def filter_code(self) -> str | None:
        """Return a digest of the functions that decide which rows there are; None if there are none."""
        functions = [op.function for op in self.ops if isinstance(op, UserOp) and not op.keeps_rows]
        return digest([function.source for function in functions]) if functions else None


def is_same(saved: str, now: str) -> bool:
    """Whether two fingerprints identify the same rows. Older versions saved them without the contents of files."""
    return saved == now or saved == now.partition("-")[0]


def as_source(plan: Plan, title: str, tables: Callable[[], Sequence[pa.Table]]) -> DataSource:
    """Return the rows of a plan as a source, mapped and in the shuffled order of the first epoch.

    If their number is unknown, ``tables`` computes them when they are needed.
    """
    if not plan.keeps_rows:
        return LazyTables(tables, title)
    source = plan.source
    if plan.shuffling.how != "no":
        order = plan.order(1, plan.shuffling.seed or 0)
        window = order.window if order.window > 1 else DEFAULT_WINDOW_ROWS
        source = ShuffledView(source, order, max(1, min(order.num_rows, window)))
    if plan.ops:
        source = MappedView(source, _Mapping(plan.ops), ", ".join(op.title for op in plan.ops))
    return source


class _Mapping:
    """A chain of operations as one function that can be pickled."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = tuple(ops)
        self._local = threading.local()  # each thread has its own instances of a user's class

    def __call__(self, chunk: Chunk, row_name: RowName) -> Chunk:
        if not hasattr(self._local, "chain"):
            self._local.chain = Chain(self._ops)
        made: Chunk = self._local.chain(chunk, row_name)
        return made

    def __reduce__(self) -> Any:
        return _Mapping, (self._ops,)
