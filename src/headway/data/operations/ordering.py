"""Functions from plans to plans that select and order rows: limits, unions, shuffles, sorting, parts.

Operations that must run the plan first (a sort, a limit after a filter) take a function that returns the rows. It is
called when the rows are needed, not here.
"""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from headway.core.errors import DataError
from headway.data.datasource.base import DataSource, check_columns, check_whole
from headway.data.datasource.memory import LazyTables, tables_of
from headway.data.datasource.views import RandomPart, UnionView, ZipView, in_pieces, some_rows
from headway.data.plan import Plan, Shuffling, as_source


def limited(plan: Plan, limit: int, first_rows: Callable[[int], pa.Table]) -> Plan:
    """Keep the first rows. ``first_rows`` is called if their position in the source is not known."""
    check_whole("limit", limit)
    if limit < 0:
        raise DataError(f"limit must not be negative, got {limit}")
    if not plan.keeps_rows:
        return Plan(LazyTables(lambda: [first_rows(limit)], "limit"))
    if plan.shuffling.how == "no":
        return replace(plan, source=some_rows(plan.source, 0, min(limit, plan.source.num_rows)))
    source = as_source(plan, "limit", lambda: ())
    return Plan(some_rows(source, 0, min(limit, source.num_rows)))


def union(sources: Sequence[DataSource]) -> Plan:
    return Plan(UnionView(tuple(sources)))


def zipped(sources: Sequence[DataSource]) -> Plan:
    """Combine the columns of all sources, side by side."""
    left, *others = sources
    for right in others:
        if right.num_rows != left.num_rows:
            raise DataError(f"zip needs equal numbers of rows, got {left.num_rows:,} and {right.num_rows:,}")
        left = ZipView(left, right)
    return Plan(left)


def shuffled(plan: Plan, how: Literal["window", "full"], seed: int | None, window_rows: int | None) -> Plan:
    if how not in ("window", "full"):
        raise DataError(f'shuffle must be "window" or "full", got {how!r}')
    for name, number in (("seed", seed), ("window_rows", window_rows)):
        if number is not None:
            check_whole(name, number)
    if window_rows is not None and window_rows < 1:
        raise DataError(f"window_rows must be positive, got {window_rows}")
    return replace(plan, shuffling=Shuffling(how, seed, window_rows))


def repartitioned(plan: Plan, num_blocks: int | None, table: Callable[[], pa.Table]) -> Plan:
    """Divide the rows into ``num_blocks`` pieces of equal size."""
    if not isinstance(num_blocks, int) or num_blocks < 1:
        raise DataError(f"repartition needs a positive number of blocks, got {num_blocks!r}")
    if plan.keeps_rows:
        return replace(plan, source=in_pieces(plan.source, num_blocks))
    return Plan(LazyTables(lambda: tables_of(table(), num_blocks), "repartition"))


def in_order_of(
    plan: Plan, key: str | Sequence[str], descending: bool | Sequence[bool], table: Callable[[], pa.Table]
) -> Plan:
    """Sort all rows, which ``table`` returns, by one or more columns."""
    keys = [key] if isinstance(key, str) else list(key)
    down = [descending] * len(keys) if isinstance(descending, bool) else list(descending)
    if len(down) != len(keys):
        raise DataError(f"descending needs one value or {len(keys)}, one per key, got {len(down)}")
    if plan.schema is not None:
        check_columns(keys, plan.schema.names)
    by = [(name, "descending" if each else "ascending") for name, each in zip(keys, down, strict=True)]

    def make() -> Sequence[pa.Table]:
        rows = table()
        if not rows.num_columns:
            return []  # there are no rows, and the columns are unknown
        check_columns(keys, rows.column_names)
        return tables_of(rows.take(pc.sort_indices(rows.select(keys), sort_keys=by)))

    return Plan(LazyTables(make, "sort"))


# --- parts ---


def train_test_parts(source: DataSource, test_size: int | float, shuffle: bool, seed: int | None) -> tuple[Plan, Plan]:
    given: object = test_size
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise DataError(f"test_size must be a fraction like 0.2 or a number of rows, got {test_size!r}")
    if seed is not None:
        check_whole("seed", seed)
    rows = source.num_rows
    size = int(rows * test_size) if isinstance(test_size, float) else test_size
    if not 0 < size < rows:
        raise DataError(f"test_size must leave rows in both parts, got {test_size!r} for {rows:,} rows")
    if not shuffle:
        return Plan(some_rows(source, 0, rows - size)), Plan(some_rows(source, rows - size, rows))
    how = Shuffling("window", seed)
    train, test = (RandomPart(source, rows - size, part, seed or 0) for part in (0, 1))
    return Plan(train, (), how), Plan(test, (), how)


def equal_parts(source: DataSource, n: int, *, drop_rest: bool) -> list[Plan]:
    """Split into ``n`` parts of consecutive rows. The first are one row longer, or the remaining rows are dropped."""
    check_whole("n", n)
    if n < 1:
        raise DataError(f"split needs a positive number of parts, got {n}")
    size, longer = (source.num_rows // n, 0 if drop_rest else source.num_rows % n)
    cuts = [number * size + min(number, longer) for number in range(1, n)]
    return parts_at(source, cuts, size * n + longer)


def proportional_parts(source: DataSource, proportions: Sequence[float]) -> list[Plan]:
    if not proportions or sum(proportions) >= 1 or min(proportions) <= 0:
        raise DataError(f"proportions must be positive and add up to less than 1, got {list(proportions)}")
    cuts = [int(source.num_rows * share) for share in itertools.accumulate(proportions)]
    return parts_at(source, cuts, source.num_rows)


def parts_at(source: DataSource, indices: Sequence[int], num_rows: int) -> list[Plan]:
    """Split the first ``num_rows`` rows before each index."""
    bounds = [0, *(min(max(0, index), num_rows) for index in indices), num_rows]
    if bounds != sorted(bounds):
        raise DataError(f"indices must be in ascending order, got {list(indices)}")
    return [Plan(some_rows(source, low, high)) for low, high in itertools.pairwise(bounds)]
