"""Plans: what is known of rows before any is read."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

import headway.data
from headway.core.errors import DataError
from headway.data.datasource.memory import LazyTables, Numbers
from headway.data.operations.base import Function
from headway.data.operations.columns import Rename, Select
from headway.data.operations.map_functions import Filter, MapRows
from headway.data.plan import DEFAULT_WINDOW_ROWS, MIN_WINDOW_ROWS, Plan, Shuffling, as_source, is_same

NUMBERS = Plan(Numbers(100, rows=10))


def same(row: dict[str, Any]) -> dict[str, Any]:
    return row


MAP = MapRows(function=Function(call=same))
FILTER = Filter(function=Function(call=bool))


def test_the_number_of_rows_is_known_unless_an_operation_changes_it() -> None:
    assert NUMBERS.num_rows == NUMBERS.then(MAP).num_rows == 100
    assert NUMBERS.then(MAP).then(FILTER).num_rows is None
    assert not NUMBERS.then(FILTER).then(MAP).keeps_rows


def test_columns_that_are_selected_first_are_all_that_is_read() -> None:
    assert NUMBERS.then(Select(columns=("id",))).then(MAP).columns == ("id",)
    assert NUMBERS.then(MAP).then(Select(columns=("id",))).columns is None


def test_a_column_that_the_source_does_not_have_is_refused_by_check() -> None:
    with pytest.raises(DataError, match=r"no column 'x' in range\(100\); its columns are id"):
        NUMBERS.then(Select(columns=("x",))).check()
    NUMBERS.then(MAP).then(Select(columns=("x",))).check()


def test_the_schema_is_that_of_the_source_where_no_operation_may_change_it() -> None:
    assert NUMBERS.schema == NUMBERS.source.schema
    assert NUMBERS.then(Rename(names={})).schema is None


def test_a_window_has_about_16_mib_of_rows_and_not_too_few() -> None:
    assert NUMBERS.window_rows == (16 << 20) // 8
    assert Plan(Numbers(10, "data", (1024, 1024))).window_rows == MIN_WINDOW_ROWS
    assert replace(NUMBERS, shuffling=Shuffling("window", window=7)).window_rows == 7
    assert Plan(headway.data.from_torch([1, 2]).plan.source).window_rows == DEFAULT_WINDOW_ROWS


def test_a_seed_of_the_shuffling_goes_before_that_of_the_run() -> None:
    assert replace(NUMBERS, shuffling=Shuffling("window", 3)).order(1, seed=5).seed == 3
    assert replace(NUMBERS, shuffling=Shuffling("window")).order(1, seed=5).seed == 5


def test_the_fingerprint_changes_with_rows_filters_and_shuffling_and_not_with_functions() -> None:
    known = NUMBERS.fingerprint()
    assert NUMBERS.then(MAP).fingerprint() == known
    others = [NUMBERS.then(FILTER), replace(NUMBERS, shuffling=Shuffling("window")), Plan(Numbers(101, rows=10))]
    assert known not in {each.fingerprint() for each in others}


def test_the_code_of_functions_that_drop_rows_is_told_apart() -> None:
    thirds = NUMBERS.then(Filter(function=Function(call=lambda row: row["id"] % 3 == 0)))
    halves = NUMBERS.then(Filter(function=Function(call=lambda row: row["id"] % 2 == 0)))
    assert thirds.filter_code() == thirds.then(MAP).filter_code()
    assert thirds.filter_code() != halves.filter_code()
    assert NUMBERS.then(MAP).filter_code() is None


def test_a_fingerprint_of_an_older_version_has_no_contents_and_is_accepted() -> None:
    assert is_same("rows-contents", "rows-contents")
    assert is_same("rows", "rows-contents")
    assert is_same("rows", "rows")
    assert not is_same("rows-others", "rows-contents")
    assert not is_same("others", "rows-contents")
    assert not is_same("others-contents", "rows-contents")


def test_a_plan_is_a_source_of_its_rows_also_in_another_process() -> None:
    plan = headway.data.range(20).map(lambda row: {"id": row["id"] * 2}).random_shuffle(seed=3, window_rows=5).plan
    source = as_source(plan, "test", lambda: ())
    rows = [row for piece in range(len(source.counts)) for row in source.read(piece).column("id").to_pylist()]
    assert sorted(rows) == list(range(0, 40, 2))
    assert rows != sorted(rows)


def test_operations_of_a_source_travel_without_their_state() -> None:
    source = as_source(NUMBERS.then(MAP), "test", lambda: ())
    first = source.read(0)
    assert pickle.loads(pickle.dumps(source)).read(0) == first


def test_rows_whose_number_is_not_known_are_made_when_they_are_needed() -> None:
    made = []

    def make() -> list[Any]:
        made.append(1)
        return [Numbers(3).read(0)]

    source = as_source(NUMBERS.then(FILTER), "test", make)
    assert isinstance(source, LazyTables)
    assert not made
    assert (source.num_rows, source.num_rows) == (3, 3)
    assert made == [1]
