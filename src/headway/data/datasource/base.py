"""The interface of data sources: pieces that can be read independently and whose rows are counted before reading.

A source is a value that can be pickled and read in another process. Its list of files and their row counts are
pickled with it. Every implementation passes ``headway.testing.contracts.data_source``.
"""

from __future__ import annotations

import abc
import hashlib
import numbers
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType
from typing import Any

import pyarrow as pa

from headway.core.config import unknown_option
from headway.core.errors import DataError

Columns = Sequence[str] | None


class DataSource(abc.ABC):
    """Rows, divided into pieces. A source must implement ``counts`` and ``read``; all other methods have defaults.

    Several threads may call ``read`` at the same time, for any piece, in any order, and repeatedly in every epoch.
    """

    @property
    @abc.abstractmethod
    def counts(self) -> tuple[int, ...]:
        """The number of rows of each piece. The first call may access files."""

    @abc.abstractmethod
    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        """Return the rows of a piece, with these columns in this order; None: all columns."""

    @property
    def schema(self) -> pa.Schema | None:
        """The columns if they are known before anything is read."""
        return None

    def size(self, piece: int) -> int:
        """Return approximately how many bytes a piece takes in memory; 0: unknown."""
        return 0

    def where(self, piece: int) -> str:
        """Return a name of this piece for messages, such as its file and row group."""
        return f"piece {piece}"

    @property
    def exact(self) -> bool:
        """Whether ``read`` always returns as many rows as were counted. If not, it may return fewer but never more."""
        return True

    @property
    def left_out(self) -> Sequence[str]:
        """Descriptions of what could not be read and was skipped at the user's request."""
        return ()

    @property
    def is_known(self) -> bool:
        """Whether the counts are available without running a user's function."""
        return True

    @property
    def name(self) -> str:
        return type(self).__name__

    def fingerprint(self) -> str:
        """Return a string that changes if the rows or their order change. It is equal in all processes at all times."""
        return digest(self.name, self.counts)

    def contents(self) -> str:
        """Return a digest of samples of the rows' files, which changes if rows are replaced by others of equal size.

        Empty: ``fingerprint`` is sufficient.
        """
        return ""

    @property
    def num_rows(self) -> int:
        return sum(self.counts)

    @property
    def row_bytes(self) -> int:
        """Approximately how many bytes a row takes; 0: unknown."""
        rows = self.num_rows
        return sum(map(self.size, range(len(self.counts)))) // rows if rows else 0


def digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def select(table: pa.Table, columns: Columns) -> pa.Table:
    return table if columns is None else table.select(list(columns))


def check_columns(names: Iterable[str], known: Sequence[str], where: str = "this dataset") -> None:
    """Raise DataError for the first name that is not a known column."""
    for name in names:
        if name not in known:
            raise DataError(f"there is no column {name!r} in {where}; its columns are {', '.join(known)}")


# options for Ray's scheduler; they have no effect
_RAYS = {"parallelism", "concurrency", "num_cpus", "num_gpus", "memory", "resources", "ray_remote_args", "max_retries"}


def refuse_unknown(options: Mapping[str, object], *known: str, depth: int = 1) -> None:
    """Raise DataError for unknown options of the calling function instead of ignoring them.

    Args:
        options: the options that are not parameters of the function.
        known: names that are allowed nevertheless.
        depth: 2 if the function that the user called is the caller of the calling function, whose options count, too.
    """
    unknown = sorted(set(options) - _RAYS - set(known))
    if unknown:
        called = sys._getframe(depth).f_code
        names = dict.fromkeys((*_parameters(called), *_parameters(sys._getframe(1).f_code), *known))
        names.pop("self", None)
        raise DataError(unknown_option(called.co_name, unknown[0], list(names)))


def _parameters(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def check_whole(name: str, value: object) -> None:
    """Raise DataError if a value is not a whole number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise DataError(f"{name} must be a whole number, got {value!r}")
