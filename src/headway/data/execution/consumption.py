"""Functions that run a plan for its rows: in chunks, the first rows, all rows as tables, or one row for debugging."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headway.core.errors import DataError
from headway.data.blocks.chunk import (
    Chunk,
    chunk_of,
    copied,
    empty_table,
    groups_of,
    joined,
    num_rows,
    rows_of,
    sliced,
    table_of,
)
from headway.data.datasource.views import read_picks
from headway.data.execution.epochs import BatchOptions, EpochStream
from headway.data.execution.progress_bar import shown
from headway.data.operations.base import Chain
from headway.data.plan import Plan
from headway.data.sharding.row_order import Picks

ROWS = 1024  # rows of a chunk if no batch size is given
TABLE_BYTES = 8 << 20  # approximate bytes of a table in memory


def chunks(stream: EpochStream, title: str) -> Iterator[Chunk]:
    """Yield all rows in chunks, with a progress bar if this takes long."""
    size = max([ROWS, *(op.batch_size or 0 for op in stream.plan.ops)])
    options = BatchOptions(size, prefetch=2)
    yield from shown(stream.iterate(options), title, stream.plan.num_rows, num_rows, stream.context)


def first_rows(stream: EpochStream, limit: int) -> Chunk:
    """Return the first rows, without reading more than necessary."""
    found: list[Chunk] = []
    missing = limit
    batches = stream.iterate(BatchOptions(min(ROWS, max(1, limit)), prefetch=1))
    try:
        for chunk in batches:
            if num_rows(chunk):
                found.append(sliced(chunk, 0, missing))
                missing -= num_rows(found[-1])
            if missing <= 0:
                break
    finally:
        batches.close()
    return joined(found) if found else {}


def all_rows(stream: EpochStream) -> Chunk:
    """Return all rows as one chunk. If there are none, it has their columns, as far as they are known."""
    found = list(chunks(stream, "collecting"))
    if any(map(num_rows, found)):
        return joined(found)
    return next((chunk for chunk in found if chunk), no_rows(stream.plan))


def all_tables(stream: EpochStream) -> list[pa.Table]:
    """Return all rows as tables of about 8 MiB."""
    groups = groups_of(chunks(stream, "materializing"), TABLE_BYTES)
    tables = [table_of(joined(group)).combine_chunks() for group in groups]
    nothing = no_rows(stream.plan)
    return tables or ([table_of(nothing)] if nothing else [])


def no_rows(plan: Plan) -> Chunk:
    """Return an empty chunk with the plan's columns, or without columns if they depend on a user's function."""
    schema = plan.source.schema
    chunk = chunk_of(empty_table(schema)) if schema is not None else {}
    for op in plan.ops:
        if not chunk or (op.is_users and not op.keeps_columns):
            return {}
        if not op.is_users:
            chunk = op.runner()(chunk, str)
    return chunk


def mapped_row(plan: Plan, row: int) -> dict[str, Any] | list[dict[str, Any]]:
    """Apply all operations to one row of the source, in this thread."""
    source = plan.source
    if not 0 <= row < source.num_rows:
        raise DataError(f"there is no row {row}: the source has {source.num_rows:,}")
    ends = np.cumsum(source.counts)
    piece = int(np.searchsorted(ends, row, side="right"))
    first = int(ends[piece]) - source.counts[piece]
    table = read_picks(source, Picks(np.array([piece]), np.array([row - first])), plan.columns)
    rows = rows_of(Chain(plan.ops)(copied(table), lambda number: f"row {row}"))
    return rows[0] if len(rows) == 1 else rows
