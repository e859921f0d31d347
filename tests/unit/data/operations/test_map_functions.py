"""Functions by row and by batch: what they get, and what they may return."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

import headway.data
from data_examples import ids, of, some, values_of
from headway.core.phrases import a_kind
from headway.data import DataContext, DataError, Dataset


def test_map_makes_a_row_of_each_row_in_order() -> None:
    mapped = headway.data.range(3000).map(lambda row: {"square": row["id"] ** 2, "text": str(row["id"])})
    assert mapped.take_all() == [{"square": n * n, "text": str(n)} for n in range(3000)]
    assert mapped.count() == 3000


def test_map_hands_on_arguments() -> None:
    def shifted(row: dict[str, Any], by: int, *, times: int) -> dict[str, Any]:
        return {"id": (row["id"] + by) * times}

    assert ids(headway.data.range(3).map(shifted, fn_args=(1,), fn_kwargs={"times": 10})) == [10, 20, 30]


@pytest.mark.parametrize("value", [1, 1.5, "x", b"x", True, None, [1, 2], {"k": 1}, np.float32(1.5), np.arange(2)])
def test_map_may_return_any_value(value: Any) -> None:
    rows = headway.data.range(5).map(lambda row: {"v": value}).take_all()
    assert [np.array_equal(row["v"], value) for row in rows] == [True] * 5


def test_map_may_return_none_for_some_rows() -> None:
    assert ids(headway.data.range(4).map(lambda row: {"id": row["id"] or None})) == [None, 1, 2, 3]
    assert ids(headway.data.range(4).map(lambda row: {"id": None if row["id"] == 2 else row["id"]})) == [0, 1, None, 3]


def test_map_that_returns_values_of_different_types_keeps_them_or_is_refused() -> None:
    mixed = headway.data.range(3).map(lambda row: {"id": "two" if row["id"] == 2 else row["id"]})
    try:
        found = ids(mixed)
    except (DataError, TypeError, pa.ArrowException):
        return
    assert found == [0, 1, "two"]


@pytest.mark.parametrize("batch_format", ["numpy", "default", "pandas", "pyarrow", None])
def test_a_function_on_batches_gets_the_form_that_it_asks_for(batch_format: str | None) -> None:
    kinds = {"numpy": dict, "default": dict, "pandas": pd.DataFrame, "pyarrow": pa.Table, None: pa.Table}

    def same(batch: Any) -> Any:
        assert isinstance(batch, kinds[batch_format])
        return batch

    assert some().map_batches(same, batch_format=batch_format).take_all() == some().take_all()


@pytest.mark.parametrize(
    "made",
    [
        lambda batch: {"id": batch["id"] * 2},
        lambda batch: {"id": (batch["id"] * 2).tolist()},
        lambda batch: {"id": torch.as_tensor(batch["id"]) * 2},
        lambda batch: {"id": pd.Series(batch["id"] * 2)},
        lambda batch: {"id": pa.array(batch["id"] * 2)},
        lambda batch: pd.DataFrame({"id": batch["id"] * 2}),
        lambda batch: pa.table({"id": batch["id"] * 2}),
        lambda batch: pa.RecordBatch.from_pydict({"id": batch["id"] * 2}),
    ],
    ids=["array", "list", "tensor", "series", "arrow", "frame", "table", "record batch"],
)
def test_a_function_on_batches_may_return_any_form(made: Callable[[Any], Any]) -> None:
    assert ids(headway.data.range(2000).map_batches(made)) == [2 * n for n in range(2000)]


def test_a_function_on_batches_gets_no_more_rows_than_it_asks_for() -> None:
    sizes: list[int] = []

    def measured(batch: dict[str, Any]) -> dict[str, Any]:
        sizes.append(len(batch["id"]))
        return batch

    assert ids(headway.data.range(100).map_batches(measured, batch_size=7)) == list(range(100))
    assert sum(sizes) == 100
    assert max(sizes) == 7


def test_a_generator_may_make_several_batches_of_one() -> None:
    def doubled(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield batch
        yield {"id": batch["id"] + 100}

    found = headway.data.range(4).map_batches(doubled, batch_size=2, keeps_rows=False)
    assert ids(found) == [0, 1, 100, 101, 2, 3, 102, 103]


def test_a_generator_that_yields_nothing_leaves_nothing() -> None:
    def none(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from ()

    assert headway.data.range(4).map_batches(none, keeps_rows=False).take_all() == []


def test_a_function_that_leaves_out_rows_keeps_their_type() -> None:
    def above_five(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": [number for number in batch["id"].tolist() if number > 5]}

    left = headway.data.range(10).map_batches(above_five, batch_size=2, keeps_rows=False)
    assert [(type(value), value) for value in ids(left)] == [(int, n) for n in range(6, 10)]


class Adds:
    """Has state, and is used by one thread at a time."""

    made: list[Adds]

    def __init__(self, number: int = 1, *, scale: int = 1) -> None:
        self.number, self.scale, self.calls, self.busy = number, scale, 0, False
        type(self).made.append(self)

    def __call__(self, batch: Any) -> Any:
        assert not self.busy, "two threads use one object"
        self.busy = True
        time.sleep(0.001)
        self.calls += 1
        self.busy = False
        return {"id": batch["id"] * self.scale + self.number}


@pytest.fixture(autouse=True)
def _none_made() -> None:
    Adds.made = []


def test_a_class_is_made_an_object_with_its_arguments() -> None:
    mapped = headway.data.range(50).map_batches(Adds, fn_constructor_args=(5,), fn_constructor_kwargs={"scale": 2})
    assert ids(mapped) == [2 * n + 5 for n in range(50)]
    assert headway.data.range(3).map(Adds, fn_constructor_args=(7,)).take_all() == [{"id": n + 7} for n in range(3)]


@pytest.mark.parametrize("concurrency", [1, 3, (1, 3)])
def test_objects_of_a_class_belong_to_a_thread_each(concurrency: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataContext.get_current(), "num_threads", 8)
    mapped = headway.data.range(400).map_batches(Adds, concurrency=concurrency)
    assert of(mapped.iter_batches(batch_size=10)) == list(range(1, 401))
    assert 1 <= len(Adds.made) <= (3 if concurrency != 1 else 1)
    assert sum(each.calls for each in Adds.made) == 40


@pytest.mark.usefixtures("four_threads")
def test_objects_of_a_class_belong_to_a_thread_each_after_a_split_too() -> None:
    train, _ = headway.data.range(400, override_num_blocks=40).map_batches(Adds).train_test_split(0.1)
    assert of(train.iter_batches(batch_size=10)) == list(range(1, 361))


@pytest.mark.parametrize(
    "kept",
    [
        lambda rows: rows.filter(lambda row: row["a"] > 6 and row["b"] != "8"),
        lambda rows: rows.filter(expr="a > 6 and b != '8'"),
        lambda rows: rows.filter(expr="not (a <= 6 or b in ['8'])"),
        lambda rows: rows.filter(expr="6 < a < 100 and b not in ['8', '12']"),
        lambda rows: rows.filter(expr=(pc.field("a") > 6) & (pc.field("b") != "8")),
        lambda rows: rows.filter(expr="c * 2 + 1 > 7 and a - 1 != 7"),
    ],
    ids=["function", "text", "not", "chained", "pyarrow", "computed"],
)
def test_filter_keeps_the_rows_for_which_it_is_true(kept: Callable[[Dataset], Dataset]) -> None:
    assert ids(kept(some()), "a") == [7, 9]
    assert kept(some()).count() == 2


def test_filter_without_arguments_keeps_all() -> None:
    assert some().filter().take_all() == some().take_all()
    assert some().filter().count() == 10


def test_filter_with_arguments_and_with_a_class() -> None:
    class Above:
        def __init__(self, least: int) -> None:
            self.least = least

        def __call__(self, row: dict[str, Any]) -> bool:
            return row["id"] > self.least

    assert ids(headway.data.range(5).filter(Above, fn_constructor_args=(2,))) == [3, 4]
    assert ids(headway.data.range(5).filter(lambda row, least: row["id"] > least, fn_args=(3,))) == [4]


def test_flat_map_makes_any_number_of_rows_of_each() -> None:
    found = headway.data.range(4).flat_map(lambda row: [{"id": row["id"], "copy": n} for n in range(row["id"])])
    assert [(row["id"], row["copy"]) for row in found.take_all()] == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    assert found.count() == 6


def test_flat_map_may_leave_nothing() -> None:
    none = headway.data.range(4).flat_map(lambda row: [])
    assert (none.take_all(), none.count()) == ([], 0)


@pytest.mark.parametrize("batch_format", ["numpy", "pandas", "pyarrow"])
def test_a_column_is_added_from_any_form(batch_format: str) -> None:
    def twice(batch: Any) -> Any:
        return pc.multiply(batch["a"], 2) if batch_format == "pyarrow" else batch["a"] * 2

    assert ids(some().add_column("d", twice, batch_format=batch_format), "d") == [2 * n for n in range(10)]


@pytest.mark.parametrize("value", [None, 5, "text", [1, 2]])
def test_map_must_return_a_dict(value: Any) -> None:
    with pytest.raises(DataError, match=rf"must return a dict.*returned {a_kind(value)} for row 3"):
        headway.data.range(5).map(lambda row: value if row["id"] == 3 else row).take_all()


def test_map_must_return_the_same_columns_for_every_row() -> None:
    dataset = headway.data.range(5).map(lambda row: {"id": 1} if row["id"] < 3 else {"id": 1, "more": 2})
    with pytest.raises(DataError, match="differ in more"):
        dataset.take_all()


@pytest.mark.parametrize("value", [None, 5, "text", [1, 2]])
def test_map_batches_must_return_a_batch(value: Any) -> None:
    with pytest.raises(DataError, match=rf"must return a dict of arrays.*not {a_kind(value)}"):
        headway.data.range(5).map_batches(lambda batch: value).take_all()


def test_changing_the_number_of_rows_has_to_be_declared() -> None:
    def halved(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"][::2]}

    with pytest.raises(DataError, match=r"3 rows for 5.*keeps_rows=False"):
        headway.data.range(5).map_batches(halved).take_all()
    assert values_of(headway.data.range(5).map_batches(halved, keeps_rows=False), "id") == [0, 2, 4]


def test_an_added_column_needs_a_value_for_each_row() -> None:
    with pytest.raises(DataError, match=r"4 values for 5 rows"):
        headway.data.range(5).add_column("x", lambda frame: frame["id"][1:]).take_all()
