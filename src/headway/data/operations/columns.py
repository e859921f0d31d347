"""Operations on columns, and filters by expressions. They call no user function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headway.core.errors import DataError
from headway.data.blocks.chunk import Chunk, chunk_of, table_of
from headway.data.datasource.base import check_columns
from headway.data.operations.base import Op, RowName, Runner


@dataclass(frozen=True, kw_only=True)
class FilterBy(Op):
    """An operation that keeps the rows for which an Arrow expression is true, without Python code per row."""

    expression: Any

    @property
    def title(self) -> str:
        return f"filter({self.expression})"

    @property
    def keeps_rows(self) -> bool:
        return False

    def runner(self) -> Runner:
        def run(chunk: Chunk, row_name: RowName) -> Chunk:
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
        def run(chunk: Chunk, row_name: RowName) -> Chunk:
            check_columns(self.columns, list(chunk))
            return {name: chunk[name] for name in self.columns}

        return run


@dataclass(frozen=True, kw_only=True)
class Drop(Op):
    columns: tuple[str, ...]

    @property
    def title(self) -> str:
        return "drop_columns"

    def runner(self) -> Runner:
        def run(chunk: Chunk, row_name: RowName) -> Chunk:
            check_columns(self.columns, list(chunk))
            return {name: column for name, column in chunk.items() if name not in self.columns}

        return run


@dataclass(frozen=True, kw_only=True)
class Rename(Op):
    """An operation that renames columns. ``names``: a dict from old to new names, or a name for every column."""

    names: Mapping[str, str] | tuple[str, ...]

    @property
    def title(self) -> str:
        return "rename_columns"

    def runner(self) -> Runner:
        return lambda chunk, row_name: dict(zip(self._new_names(chunk), chunk.values(), strict=True))

    def _new_names(self, chunk: Chunk) -> list[str]:
        if isinstance(self.names, tuple):
            if len(self.names) != len(chunk):
                raise DataError(f"rename_columns needs {len(chunk)} names, one per column, got {len(self.names)}")
            names = list(self.names)
        else:
            check_columns(self.names, list(chunk))
            names = [self.names.get(name, name) for name in chunk]
        if len(set(names)) < len(names):
            raise DataError(f"rename_columns would give two columns the same name: {', '.join(names)}")
        return names
