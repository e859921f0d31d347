"""Operations on columns and conditions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

import headway.data
from data_examples import ids, some
from headway.data import DataError


def test_filter_by_an_expression_keeps_tensors_and_strings() -> None:
    rows = headway.data.from_items([{"n": n, "x": np.full((2, 2), n), "s": "x" * n} for n in range(6)])
    found = rows.filter(expr="n >= 4").take_all()
    assert [(row["x"].tolist(), row["s"]) for row in found] == [([[n, n], [n, n]], "x" * n) for n in (4, 5)]


def test_what_is_left_of_tensors_in_files_can_be_kept_and_split(tmp_path: Path) -> None:
    rows = {"x": np.arange(20.0, dtype=np.float32).reshape(10, 2), "y": np.arange(10)}
    headway.data.from_numpy(rows).write_parquet(str(tmp_path))
    dataset = headway.data.read_parquet(str(tmp_path))
    train, test = dataset.filter(lambda row: row["y"] % 2 == 0).train_test_split(0.4)
    assert [row["x"].tolist() for row in train.take_all()] == [[0, 1], [4, 5], [8, 9]]
    assert ids(test, "y") == [6, 8]
    nothing = dataset.filter(lambda row: False).materialize()
    assert (nothing.count(), nothing.columns()) == (0, ["x", "y"])
    assert ids(headway.data.read_parquet(str(tmp_path), filter=pc.field("y") > 7), "y") == [8, 9]


def test_columns_are_selected_dropped_renamed_and_added() -> None:
    assert some().select_columns(["c", "a"]).columns() == ["c", "a"]
    assert some().select_columns("b").take(1) == [{"b": "0"}]
    assert some().drop_columns(["a", "c"]).take(1) == [{"b": "0"}]
    assert some().rename_columns({"a": "x", "b": "y"}).columns() == ["x", "y", "c"]
    assert some().rename_columns(["x", "y", "z"]).columns() == ["x", "y", "z"]
    assert some().rename_columns({"a": "b", "b": "a"}).take(1) == [{"b": 0, "a": "0", "c": 0.0}]
    assert some().add_column("d", lambda frame: frame["a"] * 10).take(2)[1] == {"a": 1, "b": "1", "c": 0.5, "d": 10}


def test_renaming_loses_no_column() -> None:
    """Two columns of one name cannot be."""
    with pytest.raises(DataError, match="b"):
        some().rename_columns({"a": "b"}).take_all()
    with pytest.raises(DataError, match="x"):
        some().rename_columns(["x", "x", "y"]).take_all()


def test_a_condition_on_a_missing_column_names_it() -> None:
    with pytest.raises(DataError, match="nope"):
        headway.data.range(3).filter(expr="nope > 1").take_all()
