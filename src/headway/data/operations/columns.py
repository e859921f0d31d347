"""What is done to columns, and to rows by a condition: no function of the user's is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headway.core.errors import DataError
from headway.data.blocks.chunk import Chunk, chunk_of, table_of
from headway.data.datasource.parquet import no_column
from headway.data.operations.base import Op, Runner, Tell


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


def _column(chunk: Chunk, name: str) -> Any:
    if name not in chunk:
        raise no_column(name, list(chunk), "this dataset")
    return chunk[name]
