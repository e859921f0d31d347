"""Rows of a plan: the first ones, none, one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headway.data
from data_examples import some
from headway.data import DataError


def test_schema_and_columns_are_known() -> None:
    assert some().schema() == pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())])
    assert some().columns() == ["a", "b", "c"]
    mapped = some().map(lambda row: {"x": np.zeros((2, 3), np.float32), "y": row["b"]})
    assert mapped.schema().names == ["x", "y"]
    assert mapped.schema().field("x").type == pa.fixed_shape_tensor(pa.float32(), (2, 3))


def test_an_empty_dataset_keeps_its_columns() -> None:
    empty = headway.data.range(0)
    assert (empty.count(), empty.take_all(), empty.columns()) == (0, [], ["id"])
    assert list(empty.to_pandas().columns) == ["id"]
    assert empty.to_arrow().column_names == ["id"]
    assert list(empty.iter_batches()) == []
    assert list(empty.iter_rows()) == []
    assert empty.random_shuffle().take_all() == []


def test_columns_of_an_empty_dataset_can_be_renamed_and_selected() -> None:
    empty = headway.data.from_arrow(pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.string())}))
    assert empty.rename_columns({"a": "x"}).columns() == ["x", "b"]
    assert empty.select_columns("b").columns() == ["b"]
    assert empty.drop_columns("b").columns() == ["a"]


def test_the_first_rows_do_not_need_the_others() -> None:
    seen: list[int] = []

    def watched(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row["id"])
        return row

    assert headway.data.range(100_000).map(watched).take(3) == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert len(seen) < 1000


def test_a_row_out_of_range_cannot_be_probed() -> None:
    with pytest.raises(DataError, match=r"no row 5.*3"):
        headway.data.range(3).probe(5)
    with pytest.raises(DataError, match="no row -1"):
        headway.data.range(3).probe(-1)
