"""Views: sources based on other sources, such as parts, unions, zipped columns, shuffled or mapped rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headway.core.errors import DataError
from headway.data.blocks.chunk import chunk_of, gathered, table_of
from headway.data.datasource.base import Columns, DataSource, digest
from headway.data.datasource.memory import cut
from headway.data.sharding.row_order import Lane, Order, Picks, permutation


def read_picks(source: DataSource, picks: Picks, columns: Columns = None) -> pa.Table:
    """Return these rows of a source; each piece is read once."""
    pieces, where = np.unique(picks.pieces, return_inverse=True)
    if not len(pieces):
        return source.read(0, columns).slice(0, 0)
    blocks = [source.read(int(piece), columns) for piece in pieces]
    return table_of(gathered(blocks, where, picks.rows))


class View(DataSource):
    """A source based on another one, whose properties it has unless it overrides them."""

    base: DataSource

    @property
    def schema(self) -> pa.Schema | None:
        return self.base.schema

    @property
    def exact(self) -> bool:
        return self.base.exact

    @property
    def left_out(self) -> Sequence[str]:
        return self.base.left_out

    @property
    def is_known(self) -> bool:
        return self.base.is_known

    @property
    def name(self) -> str:
        return self.base.name

    def contents(self) -> str:
        return self.base.contents()


@dataclass(frozen=True)
class RowRanges(View):
    """A view whose i-th piece has the rows ``bounds[i]`` to ``bounds[i + 1]`` of a source."""

    base: DataSource
    bounds: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(high - low for low, high in zip(self.bounds, self.bounds[1:], strict=False))

    @functools.cached_property
    def _ends(self) -> np.ndarray[Any, Any]:
        return np.cumsum(self.base.counts)

    def _parts(self, piece: int) -> Iterator[tuple[int, int, int]]:
        """(piece of the base, first row, number of rows)"""
        low, high = self.bounds[piece], self.bounds[piece + 1]
        number = int(np.searchsorted(self._ends, low, side="right"))
        while low < high:
            begin = int(self._ends[number]) - self.base.counts[number]
            stop = min(high, int(self._ends[number]))
            if stop > low:
                yield number, low - begin, stop - low
            low, number = max(low, stop), number + 1

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        tables = [self.base.read(n, columns).slice(first, rows) for n, first, rows in self._parts(piece)]
        if not tables:
            return self.base.read(0, columns).slice(0, 0)
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")

    def size(self, piece: int) -> int:
        return sum(self.base.size(n) * rows // max(1, self.base.counts[n]) for n, _, rows in self._parts(piece))

    def where(self, piece: int) -> str:
        return "; ".join(self.base.where(number) for number, _, _ in self._parts(piece)) or "no rows"

    def fingerprint(self) -> str:
        return digest(self.base.fingerprint(), self.bounds)


def some_rows(base: DataSource, first: int, stop: int) -> RowRanges:
    """Return a range of rows, divided at the same rows as the source's pieces."""
    ends = np.cumsum((0, *base.counts)).tolist()
    inner = [end for end in ends if first < end < stop]
    return RowRanges(base, (first, *inner, stop) if stop > first else (first, first))


def in_pieces(base: DataSource, num_pieces: int) -> RowRanges:
    if num_pieces < 1:
        raise DataError(f"the number of blocks must be at least 1, got {num_pieces}")
    rows = base.num_rows
    return RowRanges(base, tuple(rows * number // num_pieces for number in range(num_pieces + 1)))


@dataclass(frozen=True)
class RandomPart(View):
    """A random part of the rows in their original order: part 0 has ``num_first`` rows, part 1 has the others."""

    base: DataSource
    num_first: int
    part: int
    seed: int

    @functools.cached_property
    def _rows(self) -> tuple[np.ndarray[Any, Any], ...]:
        shuffled = permutation(self.base.num_rows, self.seed, 0x5917)
        chosen = np.sort(shuffled[: self.num_first] if self.part == 0 else shuffled[self.num_first :])
        ends = np.cumsum(self.base.counts)
        begins = ends - np.asarray(self.base.counts)
        cuts = np.searchsorted(chosen, ends)
        firsts = np.concatenate([[0], cuts[:-1]]) if len(cuts) else cuts
        return tuple(chosen[a:b] - begin for a, b, begin in zip(firsts, cuts, begins, strict=True))

    @functools.cached_property
    def _pieces(self) -> tuple[int, ...]:
        return tuple(number for number, rows in enumerate(self._rows) if len(rows))

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(len(self._rows[number]) for number in self._pieces)

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        number = self._pieces[piece]
        return table_of(gathered([self.base.read(number, columns)], np.zeros(0), self._rows[number]))

    def size(self, piece: int) -> int:
        number = self._pieces[piece]
        return self.base.size(number) * len(self._rows[number]) // max(1, self.base.counts[number])

    def where(self, piece: int) -> str:
        return self.base.where(self._pieces[piece])

    def fingerprint(self) -> str:
        return digest(self.base.fingerprint(), self.num_first, self.part, self.seed)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without values that can be recomputed."""
        return {name: getattr(self, name) for name in ("base", "num_first", "part", "seed")}


@dataclass(frozen=True)
class UnionView(DataSource):
    """The concatenated rows of several sources."""

    parts: tuple[DataSource, ...]

    @functools.cached_property
    def _ends(self) -> list[int]:
        ends: list[int] = np.cumsum([len(part.counts) for part in self.parts]).tolist()
        return ends

    def _find(self, piece: int) -> tuple[DataSource, int]:
        number = int(np.searchsorted(self._ends, piece, side="right"))
        return self.parts[number], piece - (self._ends[number - 1] if number else 0)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(count for part in self.parts for count in part.counts)

    @property
    def schema(self) -> pa.Schema | None:
        return next((part.schema for part in self.parts if part.schema is not None), None)

    @property
    def exact(self) -> bool:
        return all(part.exact for part in self.parts)

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        part, number = self._find(piece)
        return part.read(number, columns)

    def size(self, piece: int) -> int:
        part, number = self._find(piece)
        return part.size(number)

    def where(self, piece: int) -> str:
        part, number = self._find(piece)
        return part.where(number)

    @property
    def left_out(self) -> Sequence[str]:
        return [each for part in self.parts for each in part.left_out]

    @property
    def is_known(self) -> bool:
        return all(part.is_known for part in self.parts)

    @property
    def name(self) -> str:
        return "union"

    def fingerprint(self) -> str:
        return digest("union", [part.fingerprint() for part in self.parts])

    def contents(self) -> str:
        return _common_contents(self.parts)


@dataclass(frozen=True)
class ZipView(DataSource):
    """The columns of two sources with equally many rows, side by side; a number is appended to repeated names."""

    left: DataSource
    right: DataSource

    @functools.cached_property
    def _aligned(self) -> RowRanges:
        bounds = np.cumsum((0, *self.left.counts)).tolist()
        return RowRanges(self.right, tuple(bounds))

    @property
    def counts(self) -> tuple[int, ...]:
        return self.left.counts

    @property
    def exact(self) -> bool:
        return self.left.exact and self.right.exact

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        table, other = self.left.read(piece), self._aligned.read(piece)
        for name, column in zip(other.column_names, other.columns, strict=True):
            table = table.append_column(_free(name, table.column_names), column)
        return table if columns is None else table.select(list(columns))

    def size(self, piece: int) -> int:
        return self.left.size(piece) + self._aligned.size(piece)

    def where(self, piece: int) -> str:
        return self.left.where(piece)

    @property
    def left_out(self) -> Sequence[str]:
        return [*self.left.left_out, *self.right.left_out]

    @property
    def name(self) -> str:
        return "zip"

    def fingerprint(self) -> str:
        return digest("zip", self.left.fingerprint(), self.right.fingerprint())

    def contents(self) -> str:
        return _common_contents((self.left, self.right))


def _common_contents(sources: Sequence[DataSource]) -> str:
    found = [source.contents() for source in sources]
    return digest(found) if any(found) else ""


def _free(name: str, taken: list[str]) -> str:
    number, candidate = 1, name
    while candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    return candidate


@dataclass(frozen=True)
class ShuffledView(View):
    """The rows of a source in the order in which the first epoch shuffles them; a piece is a window of that order."""

    base: DataSource
    order: Order
    rows: int

    @functools.cached_property
    def _lane(self) -> Lane:
        return self.order.lane(0, 0)

    @property
    def counts(self) -> tuple[int, ...]:
        return cut(self.order.num_rows, self.rows)

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        first = piece * self.rows
        picks = self._lane.picks(first, first + self.counts[piece])
        return read_picks(self.base, picks, columns)

    def size(self, piece: int) -> int:
        return self.base.row_bytes * self.counts[piece]

    def fingerprint(self) -> str:
        return digest(self.base.fingerprint(), self.order.shuffle, self.order.window, self.order.seed, self.rows)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without values that can be recomputed."""
        return {name: getattr(self, name) for name in ("base", "order", "rows")}


@dataclass(frozen=True)
class MappedView(View):
    """The rows of a source after operations that keep the number of rows."""

    base: DataSource
    call: Callable[[Any, Any], Any]  # (chunk, RowName) -> chunk
    title: str

    @property
    def schema(self) -> pa.Schema | None:
        return None

    @property
    def counts(self) -> tuple[int, ...]:
        return self.base.counts

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        table = self.base.read(piece)
        every = np.arange(table.num_rows)
        chunk = gathered([table], np.zeros(0), every) if table.num_rows else chunk_of(table)
        first = sum(self.base.counts[:piece])
        where = f"of the dataset that it was applied to ({self.base.where(piece)})"
        mapped = table_of(self.call(chunk, lambda number: f"row {first + number} {where}"))
        if mapped.num_rows != table.num_rows:
            raise DataError(f"{self.title} changed the number of rows, from {table.num_rows:,} to {mapped.num_rows:,}")
        return mapped if columns is None else mapped.select(list(columns))

    def size(self, piece: int) -> int:
        return self.base.size(piece)

    def where(self, piece: int) -> str:
        return self.base.where(piece)

    @property
    def name(self) -> str:
        return f"{self.base.name}, {self.title}"

    def fingerprint(self) -> str:
        return digest(self.base.fingerprint(), self.title)
