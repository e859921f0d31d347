"""Chunks: the rows that move through a pipeline, as a dict of columns, each a NumPy or an Arrow array.

Blocks are Arrow tables, both when they are read and while they are kept. A chunk is copied from blocks, so its arrays
may be changed in place. Numbers and tensors become NumPy arrays; strings, lists and columns with nulls stay Arrow
arrays until a caller needs NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headway.core import phrases
from headway.core.errors import DataError
from headway.data.blocks.tensor_columns import array_of, column_of, stacked, view_of

Column = Any  # np.ndarray | pa.Array
Chunk = dict[str, Column]


def num_rows(chunk: Mapping[str, Column]) -> int:
    return len(next(iter(chunk.values()))) if chunk else 0


def num_bytes(chunk: Mapping[str, Any]) -> int:
    return sum(int(getattr(column, "nbytes", 0)) for column in chunk.values())


def chunk_of(table: pa.Table) -> Chunk:
    """Return the columns of a table without copying them; the arrays must not be written to."""
    chunk = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        whole = one_array(column)
        view = view_of(whole)
        chunk[name] = whole if view is None else view
    return chunk


def one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return _empty(column.type)
    whole = column.combine_chunks()
    return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table without rows. Arrow's ``empty_table()`` rejects tensors that were read from files."""
    return pa.Table.from_arrays([_empty(field.type) for field in schema], schema=schema)


def _empty(kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array([], kind.storage_type))
    return pa.array([], kind)


def table_of(chunk: Chunk) -> pa.Table:
    return pa.table({name: _arrow(column) for name, column in chunk.items()})


def _arrow(column: Column) -> pa.Array:
    return column_of(column) if isinstance(column, np.ndarray) else column


def arrays_of(chunk: Chunk) -> dict[str, np.ndarray[Any, Any]]:
    """Return all columns as writable NumPy arrays."""
    arrays = {}
    for name, column in chunk.items():
        array = column if isinstance(column, np.ndarray) else array_of(column)
        arrays[name] = array if array.flags.writeable else array.copy()
    return arrays


def frame_of(chunk: Chunk) -> Any:
    """Return all columns as a pandas DataFrame; a tensor column has one object per row."""
    import pandas as pd

    columns = {}
    for name, column in chunk.items():
        if isinstance(column, np.ndarray):
            columns[name] = list(column) if column.ndim > 1 else column
        elif isinstance(column.type, pa.BaseExtensionType):
            columns[name] = list(array_of(column))
        else:
            columns[name] = column.to_pandas()
    return pd.DataFrame(columns)


def rows_of(chunk: Chunk) -> list[dict[str, Any]]:
    """Return a list of rows, with numbers and strings as Python objects and tensors as arrays."""
    if not chunk:
        return []
    columns = [_values(column) for column in chunk.values()]
    names = list(chunk)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: Column) -> Any:
    if not isinstance(column, np.ndarray):
        kind = column.type
        if isinstance(kind, pa.BaseExtensionType):
            return list(array_of(column))
        values: list[Any] = column.to_pylist()
        return values
    if column.ndim == 1 and column.dtype != object:
        return column.tolist() if column.dtype.kind in "biufUS" else list(column)
    return column


def sliced(chunk: Chunk, start: int, stop: int) -> Chunk:
    """Return the rows from ``start`` to ``stop`` without copying them."""
    return {name: column[start:stop] for name, column in chunk.items()}


def padded(chunk: Chunk, rows: int) -> Chunk:
    """Repeat the rows of a chunk until it has at least ``rows`` rows."""
    have = num_rows(chunk)
    return chunk if have >= rows or not have else sliced(joined([chunk] * -(-rows // have)), 0, rows)


def kept(chunk: Chunk, mask: np.ndarray[Any, Any]) -> Chunk:
    """Return the rows for which the mask is true."""
    return {
        name: column[mask] if isinstance(column, np.ndarray) else column.filter(pa.array(mask))
        for name, column in chunk.items()
    }


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """Concatenate chunks, which must have the same columns."""
    chunks = [chunk for chunk in chunks if num_rows(chunk)] or list(chunks[:1])  # empty ones may have different types
    if len(chunks) == 1:
        return chunks[0]
    names = list(chunks[0])
    _check_columns([list(chunk) for chunk in chunks])
    return {name: _joined_column(name, [chunk[name] for chunk in chunks]) for name in names}


def groups_of(chunks: Iterable[Chunk], size: int) -> Iterator[list[Chunk]]:
    """Group consecutive non-empty chunks until each group has ``size`` bytes."""
    group: list[Chunk] = []
    total = 0
    for chunk in chunks:
        if num_rows(chunk):
            group.append(chunk)
            total += num_bytes(chunk)
        if total >= size:
            yield group
            group, total = [], 0
    if group:
        yield group


def _check_columns(found: Sequence[Sequence[str]]) -> None:
    for names in found[1:]:
        if set(names) != set(found[0]):
            raise DataError(
                f"rows with the columns {', '.join(names)} follow rows with the columns {', '.join(found[0])}: "
                "every row of a dataset needs the same columns"
            )


def _joined_column(name: str, columns: list[Column]) -> Column:
    if all(isinstance(column, np.ndarray) for column in columns):
        if len({column.shape[1:] for column in columns}) == 1:
            return np.concatenate(columns)
        return np.concatenate([_per_row(column) for column in columns])
    arrays = [_arrow(column) for column in columns]
    if all(array.type == arrays[0].type for array in arrays):
        return one_array(pa.chunked_array(arrays))
    if any(isinstance(array.type, pa.BaseExtensionType) for array in arrays):
        values = [value for array in arrays for value in _values(array)]
        return column_of(_per_row(values))
    try:
        return pa.concat_tables([pa.table({name: a}) for a in arrays], promote_options="permissive")[
            name
        ].combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"column {name!r} has different types in different rows: {error}") from error


def _per_row(column: Any) -> np.ndarray[Any, Any]:
    array = np.empty(len(column), dtype=object)
    for number, value in enumerate(column):
        array[number] = value
    return array


# --- what user functions return ---


def chunk_of_rows(rows: Sequence[Mapping[str, Any]]) -> Chunk:
    """Convert rows to columns. Every row must have the same names."""
    if not rows:
        return {}
    names = rows[0].keys()
    for row in rows:
        if row.keys() != names:
            missing = sorted(map(str, names ^ row.keys()))
            raise DataError(f"rows must all have the same columns; they differ in {', '.join(missing)}")
    return {name: stacked([row[name] for row in rows]) for name in names}


def chunk_of_result(result: Any, of: str = "the function") -> Chunk:
    """Convert the return value ``of`` a batch function: a dict of arrays, a DataFrame or an Arrow table."""
    if isinstance(result, pa.Table):
        return chunk_of(result)
    if isinstance(result, pa.RecordBatch):
        return chunk_of(pa.Table.from_batches([result]))
    if isinstance(result, Mapping):
        chunk = {str(name): _returned_column(name, values) for name, values in result.items()}
        lengths = {name: len(column) for name, column in chunk.items()}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise DataError(f"{of} must return columns of equal length: {found}")
        return chunk
    if hasattr(result, "to_records") and hasattr(result, "columns"):
        return chunk_of(pa.Table.from_pandas(result, preserve_index=False))
    raise DataError(
        f"{of} must return a dict of arrays, a pandas DataFrame or an Arrow table, not {phrases.a_kind(result)}"
    )


def _returned_column(name: Any, values: Any) -> Column:
    if isinstance(values, np.ndarray):
        return values if values.ndim else np.asarray([values[()]])
    if isinstance(values, pa.ChunkedArray):
        return one_array(values)
    if isinstance(values, pa.Array):
        return values
    if hasattr(values, "__array__") and not isinstance(values, list | tuple):
        return np.asarray(values)  # a tensor, a series
    if isinstance(values, list | tuple):
        return stacked(values) if values else np.zeros(0, object)
    raise DataError(f"column {name!r} must be an array or a list with one value per row, not {phrases.a_kind(values)}")


# --- conversion to the user's batch format ---

FORMATS: dict[str, Callable[[Chunk], Any]] = {
    "numpy": arrays_of,
    "default": arrays_of,
    "pandas": frame_of,
    "pyarrow": table_of,
}


def formatted(chunk: Chunk, batch_format: str | None) -> Any:
    return FORMATS[batch_format or "pyarrow"](chunk)


def check_format(batch_format: str | None) -> None:
    if batch_format is not None and batch_format not in FORMATS:
        raise DataError(f"batch_format must be one of {', '.join(FORMATS)}, got {batch_format!r}")


# --- creating chunks from blocks ---


def gathered(blocks: Sequence[pa.Table], where: np.ndarray[Any, Any] | None, rows: np.ndarray[Any, Any]) -> Chunk:
    """Copy rows: the i-th one is row ``rows[i]`` of block ``where[i]``. A single block needs no ``where``."""
    for block in blocks[1:]:
        if block.column_names != blocks[0].column_names:
            _check_columns([blocks[0].column_names, block.column_names])
    if len(blocks) == 1:
        return {name: _taken(blocks[0].column(name), rows) for name in blocks[0].column_names}
    parts = [np.flatnonzero(where == number) for number in range(len(blocks))]
    return {
        name: _gathered_column(name, [block.column(name) for block in blocks], parts, rows)
        for name in blocks[0].column_names
    }


def _taken(column: pa.ChunkedArray, rows: np.ndarray[Any, Any]) -> Column:
    whole = one_array(column)
    view = view_of(whole)
    if view is None:
        return whole.take(column_of(rows))
    first = int(rows[0]) if len(rows) else 0
    if len(rows) and rows[-1] - first == len(rows) - 1 and (np.diff(rows) == 1).all():
        return view[first : first + len(rows)].copy()
    return np.take(view, rows, axis=0)


def _gathered_column(
    name: str, columns: list[pa.ChunkedArray], parts: list[np.ndarray[Any, Any]], rows: np.ndarray[Any, Any]
) -> Column:
    wholes = [one_array(column) for column in columns]
    views = [view_of(whole) for whole in wholes]
    if all(view is not None for view in views) and len({(v.shape[1:], v.dtype) for v in views}) == 1:  # type: ignore[union-attr]
        return _gathered_views(views, parts, rows)
    taken = [whole.take(column_of(rows[part])) for whole, part in zip(wholes, parts, strict=True)]
    joined = _joined_column(name, taken)
    back = np.empty(len(rows), np.int64)
    back[np.concatenate(parts)] = np.arange(len(rows))
    return joined.take(column_of(back))


def _gathered_views(views: list[Any], parts: list[np.ndarray[Any, Any]], rows: np.ndarray[Any, Any]) -> Column:
    out = np.empty((len(rows), *views[0].shape[1:]), views[0].dtype)
    for view, part in zip(views, parts, strict=True):
        if len(part) == 0:
            continue
        if part[-1] - part[0] == len(part) - 1:
            np.take(view, rows[part], axis=0, out=out[part[0] : part[-1] + 1], mode="clip")
        else:
            out[part] = view[rows[part]]
    return out


def copied(table: pa.Table) -> Chunk:
    """Copy all rows of a table; the copies may be changed in place."""
    return gathered([table], np.zeros(0), np.arange(table.num_rows))
