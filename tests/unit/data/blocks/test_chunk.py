"""Chunks: copies, formats, columns that must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headway.data
from data_examples import ARROW, VALUES
from headway.data import DataError, Dataset


def test_rows_hold_numbers_and_strings_as_python_has_them() -> None:
    columns = {
        "s": np.array(["a", "b"]),
        "i": np.arange(2, dtype=np.int16),
        "f": np.zeros(2),
        "b": np.array([True] * 2),
    }
    (row, _) = headway.data.range(2).map_batches(lambda batch: columns).take_all()
    assert {name: type(value) for name, value in row.items()} == {"s": str, "i": int, "f": float, "b": bool}


KINDS: dict[str, Callable[[], Dataset]] = {
    "range": lambda: headway.data.range(8).rename_columns({"id": "x"}),
    "array": lambda: headway.data.from_numpy({"x": np.arange(8.0)}),
    "tensors": lambda: headway.data.from_numpy({"x": np.arange(16.0).reshape(8, 2)}),
    "materialized": lambda: headway.data.from_numpy({"x": np.arange(8.0)}).materialize(),
    "frame": lambda: headway.data.from_pandas(pd.DataFrame({"x": np.arange(8.0)})),
    "lists": lambda: headway.data.from_items([{"x": [n, n + 1]} for n in range(8)]),
    "bools": lambda: headway.data.from_numpy({"x": np.arange(8) % 2 == 0}),
    "nulls": lambda: headway.data.from_items([{"x": n or None} for n in range(8)]),
    "filtered": lambda: headway.data.from_numpy({"x": np.arange(10.0)}).filter(expr="x < 8"),
    "zipped": lambda: headway.data.from_numpy({"x": np.arange(8.0)}).zip(headway.data.range(8)),
    "arrow out": lambda: headway.data.from_numpy({"x": np.arange(8.0)}).map_batches(lambda t: t, batch_format=None),
    "frame out": lambda: headway.data.range(8).map_batches(lambda b: pd.DataFrame({"x": b["id"] * 1.0})),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shuffled", [False, True])
def test_what_is_done_to_a_batch_in_place_is_done_to_no_other(kind: str, shuffled: bool) -> None:
    dataset = KINDS[kind]()
    dataset = dataset.random_shuffle(seed=1) if shuffled else dataset
    expected = np.sort(np.concatenate([batch["x"] for batch in dataset.iter_batches()]), axis=0)
    batches = dataset.iter_batches(batch_size=3)
    for _ in range(3):
        found = []
        for batch in batches:
            found.append(batch["x"].copy())
            batch["x"][:] = 0
        np.testing.assert_array_equal(np.sort(np.concatenate(found), axis=0), expected)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"nulls", "bools"}))
def test_a_function_may_change_its_batch_in_place(kind: str) -> None:
    def changed(batch: dict[str, Any]) -> dict[str, Any]:
        batch["x"] *= 2
        return batch

    plain = KINDS[kind]()
    before = np.concatenate([batch["x"] for batch in plain.iter_batches()])
    batches = plain.map_batches(changed).iter_batches(batch_size=3)
    for _ in range(2):
        np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in batches]), 2 * before)


@pytest.mark.parametrize("ragged", [False, True])
def test_a_function_may_change_the_arrays_of_a_row_in_place(ragged: bool) -> None:
    def changed(row: dict[str, Any]) -> dict[str, Any]:
        row["x"] += 1
        return row

    arrays = [np.full(n if ragged else 2, n) for n in range(1, 5)]
    rows = headway.data.from_items([{"x": array} for array in arrays], override_num_blocks=1).map(changed)
    for _ in range(2):
        assert [row["x"].tolist() for row in rows.take_all()] == [(array + 1).tolist() for array in arrays]


@given(st.lists(VALUES, min_size=1, max_size=20), st.integers(1, 7), st.integers(0, 5))
@settings(max_examples=30)
def test_any_rows_are_the_same_after_shuffling_and_batching(rows: list[dict[str, Any]], size: int, seed: int) -> None:
    numbered = [{**row, "number": number} for number, row in enumerate(rows)]
    shuffled = headway.data.from_items(numbered).random_shuffle(seed=seed, window_rows=size)
    found = [row for batch in shuffled.iter_batches(batch_size=size, batch_format=None) for row in batch.to_pylist()]
    assert sorted(found, key=lambda row: row["number"]) == numbered


@pytest.mark.parametrize("kind", ARROW)
@pytest.mark.parametrize("way", ["whole", "in batches", "shuffled"])
def test_a_column_of_any_arrow_type_keeps_its_type_and_values(kind: str, way: str) -> None:
    table = pa.table({"number": [0, 1, 2, 3], "x": ARROW[kind]})
    dataset = headway.data.from_arrow(table)
    if way == "shuffled":
        dataset = dataset.random_shuffle(seed=3)
    if way == "in batches":
        batches = list(dataset.iter_batches(batch_size=3, batch_format="pyarrow"))
        back = pa.concat_tables(batches, promote_options="permissive")
    else:
        back = dataset.to_arrow().sort_by("number")
    if kind != "fixed list":  # which becomes a tensor
        assert back.schema.field("x").type == table.schema.field("x").type
    assert back.column("x").to_pylist() == table.column("x").to_pylist()


def test_map_must_return_the_same_columns_in_every_chunk() -> None:
    dataset = headway.data.range(5000).map(lambda row: {"a": 1} if row["id"] < 2048 else {"b": 1})
    for consume in (dataset.to_pandas, dataset.to_arrow, dataset.materialize):
        with pytest.raises(DataError, match="columns"):
            consume()


def test_columns_of_a_batch_must_have_one_length() -> None:
    with pytest.raises(DataError, match=r"equal length: a has 5, b has 4"):
        headway.data.range(5).map_batches(lambda batch: {"a": batch["id"], "b": batch["id"][1:]}).take_all()


def test_a_column_of_a_batch_must_be_an_array() -> None:
    with pytest.raises(DataError, match=r"column 'a' must be an array or a list.*int"):
        headway.data.range(5).map_batches(lambda batch: {"a": 1}).take_all()


def test_tables_of_different_columns_are_refused() -> None:
    tables = [pa.table({"x": [1]}), pa.table({"x": [2], "y": [3]})]
    for these in (tables, tables[::-1]):
        with pytest.raises(DataError, match="y"):
            headway.data.from_arrow(these).take_all()
    with pytest.raises(DataError, match="y"):
        headway.data.from_pandas([table.to_pandas() for table in tables]).take_all()
