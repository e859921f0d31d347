"""The contract of data sources: pieces that can be read one by one, whose rows are counted before anything is read.

A source is a value. It can be pickled and read in another process; what it has found out (its files, their row
counts) travels with it. Every implementation passes ``headway.testing.contracts.data_source``.
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headway.core.errors import DataError

Columns = Sequence[str] | None


class DataSource(abc.ABC):
    """Rows in pieces. ``counts`` and ``read`` are all that a source needs; the rest has defaults.

    Several threads may call ``read`` at the same time, with any pieces in any order, and again in every epoch.
    """

    @property
    @abc.abstractmethod
    def counts(self) -> tuple[int, ...]:
        """The rows of each piece. May look at files, once."""

    @abc.abstractmethod
    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        """The rows of a piece, with these columns in this order; None: all columns."""

    @property
    def schema(self) -> pa.Schema | None:
        """The columns, where they are known before anything is read."""
        return None

    def size(self, piece: int) -> int:
        """About how many bytes a piece takes in memory; 0: unknown."""
        return 0

    def where(self, piece: int) -> str:
        """A name for this piece in messages, such as its file and row group."""
        return f"piece {piece}"

    @property
    def exact(self) -> bool:
        """Whether ``read`` always gives as many rows as were counted. If not, it gives fewer, never more."""
        return True

    @property
    def left_out(self) -> Sequence[str]:
        """What could not be read and was skipped, as requested by ``on_error``."""
        return ()

    @property
    def is_known(self) -> bool:
        """Whether the counts are available without running a user's function."""
        return True

    @property
    def name(self) -> str:
        return type(self).__name__

    def fingerprint(self) -> str:
        """Changes when the rows or their order would. The same in every process, before and after reading."""
        return digest(self.name, self.counts)

    @property
    def num_rows(self) -> int:
        return sum(self.counts)

    @property
    def row_bytes(self) -> int:
        """About how many bytes a row takes; 0: unknown."""
        rows = self.num_rows
        return sum(map(self.size, range(len(self.counts)))) // rows if rows else 0


def digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def select(table: pa.Table, columns: Columns) -> pa.Table:
    return table if columns is None else table.select(list(columns))


def check_columns(names: Iterable[str], known: Sequence[str], where: str = "this dataset") -> None:
    """Raise DataError for the first of these names that is not a known column."""
    for name in names:
        if name not in known:
            raise DataError(f"there is no column {name!r} in {where}; there are {', '.join(known)}")


# Options of Ray for its own scheduler. They have no effect here.
_RAYS = {"parallelism", "concurrency", "num_cpus", "num_gpus", "memory", "resources", "ray_remote_args", "max_retries"}


def refuse_unknown(options: Mapping[str, object], *known: str) -> None:
    """Raise DataError for options that do not exist, instead of ignoring them."""
    unknown = sorted(set(options) - _RAYS - set(known))
    if unknown:
        there = f"; there are {', '.join(known)}" if known else ""
        raise DataError(f"there is no option {', '.join(unknown)}{there}")
