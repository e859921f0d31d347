"""What a dataset is: a source, what is done to its rows, and whether they come in a shuffled order. A value."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.core.errors import DataError
from headway.data.blocks.chunk import Chunk
from headway.data.datasource.base import Source, digest
from headway.data.datasource.views import Arranged, Mapped
from headway.data.operations.base import Chain, Op, Tell
from headway.data.operations.columns import Select
from headway.data.sharding.row_order import Order, Shuffle

WINDOW = 16 << 20  # bytes of rows that are shuffled together
FEWEST = 1024  # rows of a window, at least


@dataclass(frozen=True)
class Shuffling:
    """``seed`` None: the run's own. ``window``: rows that are shuffled together; None: as many as make 16 MiB."""

    how: Shuffle = "no"
    seed: int | None = None
    window: int | None = None


@dataclass(frozen=True)
class Plan:
    source: Source
    ops: tuple[Op, ...] = ()
    shuffling: Shuffling = Shuffling()

    def then(self, op: Op) -> Plan:
        return replace(self, ops=(*self.ops, op))

    @property
    def keeps_rows(self) -> bool:
        """Whether the number of rows is that of the source."""
        return self.source.exact and all(op.keeps_rows for op in self.ops)

    @property
    def num_rows(self) -> int | None:
        return self.source.num_rows if self.keeps_rows else None

    @functools.cached_property
    def columns(self) -> tuple[str, ...] | None:
        """Which columns of the source are needed, if the first operation says so."""
        first = self.ops[0] if self.ops else None
        return first.columns if isinstance(first, Select) and self.source.schema is not None else None

    def checked(self) -> Plan:
        """Columns that are asked for and not there are missed now, not in a worker."""
        schema = self.source.schema
        if self.columns is not None and schema is not None:
            from headway.data.datasource.parquet import no_column

            for name in self.columns:
                if name not in schema.names:
                    raise no_column(name, schema.names, self.source.name)
        return self

    def window(self) -> int:
        """How many rows are shuffled together."""
        if self.shuffling.window is not None:
            return self.shuffling.window
        row = self.source.row_bytes
        return max(FEWEST, WINDOW // row) if row else 1 << 14

    def order(self, lanes: int, seed: int = 0, window: int | None = None) -> Order:
        how = self.shuffling.how
        chosen = seed if self.shuffling.seed is None else self.shuffling.seed
        return Order(self.source.counts, lanes, how, window or (self.window() if how == "window" else 1), chosen)

    def fingerprint(self) -> str:
        """Of the rows and their order; functions may change, as long as they keep their place."""
        how = self.shuffling
        return digest(self.source.fingerprint(), [op.title for op in self.ops if not op.keeps_rows], how.how, how.seed)

    # --- as a source for something else ---

    def settled(self, why: str) -> Source:
        """The same rows as a source: mapped, and in the order that a shuffle has given them."""
        if not self.keeps_rows:
            raise DataError(f"{why} needs the number of rows, which is not known here: call materialize() first")
        source = self.source
        if self.shuffling.how != "no":
            order = self.order(1, self.shuffling.seed or 0)
            source = Arranged(source, order, max(1, min(order.num_rows, order.window if order.window > 1 else 1 << 14)))
        if self.ops:
            source = Mapped(source, _Mapping(self.ops), ", ".join(op.title for op in self.ops))
        return source


class _Mapping:
    """Operations as one function that can be pickled."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = tuple(ops)
        self._local = threading.local()  # an object of the user's belongs to one thread

    def __call__(self, chunk: Chunk, tell: Tell) -> Chunk:
        if not hasattr(self._local, "chain"):
            self._local.chain = Chain(self._ops)
        made: Chunk = self._local.chain(chunk, tell)
        return made

    def __reduce__(self) -> Any:
        return _Mapping, (self._ops,)
