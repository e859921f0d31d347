"""Groups and aggregates."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headway.data
from headway.data import DataError


def test_groups_are_counted_summed_and_so_on() -> None:
    rows = headway.data.from_items([{"k": n % 3, "x": n, "y": n / 2, "s": "text"} for n in range(10)])
    by = rows.groupby("k")
    assert by.count().take_all() == [{"k": 0, "count()": 4}, {"k": 1, "count()": 3}, {"k": 2, "count()": 3}]
    assert by.sum("x").take_all() == [{"k": 0, "sum(x)": 18}, {"k": 1, "sum(x)": 12}, {"k": 2, "sum(x)": 15}]
    assert by.mean("x").take_all() == [{"k": 0, "mean(x)": 4.5}, {"k": 1, "mean(x)": 4}, {"k": 2, "mean(x)": 5}]
    assert by.min(["x", "y"]).take(1) == [{"k": 0, "min(x)": 0, "min(y)": 0}]
    assert by.max().take(1) == [{"k": 0, "max(x)": 9, "max(y)": 4.5}]
    assert rows.groupby(["k", "s"]).count().count() == 3
    assert rows.groupby(None).sum("x").take_all() == [{"sum(x)": 45}]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-100, 100)), min_size=1, max_size=40))
@settings(max_examples=25)
def test_groups_are_those_of_pandas(rows: list[tuple[int, int]]) -> None:
    frame = pd.DataFrame(rows, columns=["k", "x"])
    grouped = headway.data.from_pandas(frame).groupby("k").sum("x").to_pandas()
    expected = frame.groupby("k", as_index=False)["x"].sum().rename(columns={"x": "sum(x)"})
    pd.testing.assert_frame_equal(grouped, expected)


def test_a_function_on_groups_gets_each_group_whole() -> None:
    rows = headway.data.from_items([{"k": n % 3, "x": n} for n in range(10)])
    found = rows.groupby("k").map_groups(lambda group: {"k": group["k"][:1], "sum": [group["x"].sum()]})
    assert found.take_all() == [{"k": 0, "sum": 18}, {"k": 1, "sum": 12}, {"k": 2, "sum": 15}]


def test_aggregates_of_all_rows() -> None:
    rows = headway.data.range(5)
    assert (rows.sum("id"), rows.min("id"), rows.max("id"), rows.mean("id")) == (10, 0, 4, 2.0)
    assert rows.std("id") == pytest.approx(np.std(range(5), ddof=1))
    assert headway.data.from_items([3, 1, 3]).unique("item") == [1, 3]


def test_rows_whose_key_is_nan_are_one_group() -> None:
    keys = [float("nan"), 1.0, float("nan"), 2.0, float("nan")]
    grouped = headway.data.from_items([{"key": key, "n": n} for n, key in enumerate(keys)]).groupby("key")
    counted = sorted(row["count()"] for row in grouped.count().take_all())
    mapped = sorted(row["n"] for row in grouped.map_groups(lambda group: {"n": [len(group["n"])]}).take_all())
    assert counted == mapped == [1, 1, 3]


@pytest.mark.parametrize("name", ["sum", "min", "max", "mean", "std", "unique"])
def test_a_missing_column_has_no_aggregate(name: str) -> None:
    with pytest.raises(DataError, match=r"no column 'nope'.*its columns are id"):
        getattr(headway.data.range(3), name)("nope")


def test_an_aggregate_that_a_column_does_not_support_is_refused_with_its_name() -> None:
    data = headway.data.from_items([{"k": 1, "s": "x"}, {"k": 2, "s": "y"}])
    for name in ("mean", "sum", "std"):
        with pytest.raises(DataError, match="cannot be computed: column 's' has type"):
            getattr(data, name)("s")
        with pytest.raises(DataError, match=rf"{name}\(s\) cannot be computed: column 's' has type"):
            getattr(data.groupby("k"), name)("s").take_all()
