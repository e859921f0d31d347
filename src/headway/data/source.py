"""Where rows come from: pieces that can be read one by one, whose rows are counted before anything is read.

A source is a value. It can be pickled and read in another process; what it has found out (its files, their row
counts) travels with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

Columns = Sequence[str] | None


class Source:
    """What every source has. ``counts`` may take a look at files, once."""

    @property
    def counts(self) -> tuple[int, ...]:
        """The rows of each piece."""
        raise NotImplementedError

    @property
    def schema(self) -> pa.Schema | None:
        """The columns, where they are known before anything is read."""
        return None

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        raise NotImplementedError

    def size(self, piece: int) -> int:
        """About how many bytes a piece will take in memory; 0 where nobody knows."""
        return 0

    def where(self, piece: int) -> str:
        """What a person would call this piece."""
        return f"piece {piece}"

    @property
    def exact(self) -> bool:
        """Whether reading a piece always gives as many rows as were counted."""
        return True

    @property
    def name(self) -> str:
        return type(self).__name__

    def fingerprint(self) -> str:
        """Changes when the rows or their order would."""
        return digest(self.name, self.counts)

    @property
    def num_rows(self) -> int:
        return sum(self.counts)

    @property
    def row_bytes(self) -> int:
        """About how many bytes a row will take, 0 where nobody knows."""
        rows = self.num_rows
        return sum(map(self.size, range(len(self.counts)))) // rows if rows else 0


def digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def select(table: pa.Table, columns: Columns) -> pa.Table:
    return table if columns is None else table.select(list(columns))
