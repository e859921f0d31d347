"""What can be done to a dataset, and what comes out of it."""

from __future__ import annotations

import collections
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headway.data
from headway.data import (
    ArrowBatchCollateFn,
    DataContext,
    DataError,
    Dataset,
    NumpyBatchCollateFn,
    PandasBatchCollateFn,
)


def ids(dataset: Dataset, column: str = "id") -> list[Any]:
    return [row[column] for row in dataset.take_all()]


def of(batches: Any, column: str = "id") -> list[Any]:
    return [value for batch in batches for value in batch[column].tolist()]


def some(rows: int = 10) -> Dataset:
    return headway.data.from_items([{"a": n, "b": str(n), "c": n / 2} for n in range(rows)])


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataContext.get_current(), "num_threads", 4)


# --- rows through functions ---


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


@pytest.mark.usefixtures("four_threads")
def test_rows_keep_their_order_however_long_each_takes() -> None:
    def slow(batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(float(np.random.default_rng(int(batch["id"][0])).random()) / 200)
        return batch

    assert of(headway.data.range(300).map_batches(slow).iter_batches(batch_size=10)) == list(range(300))


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataContext.get_current(), "num_threads", 1)


def test_a_function_may_run_in_another_process() -> None:
    found = headway.data.range(4).map(lambda row: {"pid": os.getpid()}, executor="process").take_all()
    assert all(row["pid"] != os.getpid() for row in found)


def texts() -> Dataset:
    return headway.data.from_items([{"n": n, "s": f"text {n}", "l": [n] * (n % 3)} for n in range(200)])


ELSEWHERE: dict[str, Callable[[], Dataset]] = {
    "map": lambda: texts().map(lambda row: row, executor="process"),
    "filter": lambda: texts().filter(lambda row: True, executor="process"),
    "flat_map": lambda: texts().flat_map(lambda row: [row], executor="process"),
    "arrays": lambda: texts().map_batches(lambda batch: batch, executor="process"),
    "tables": lambda: texts().map_batches(lambda batch: batch, executor="process", batch_format="pyarrow"),
    "frames": lambda: texts().map_batches(lambda batch: batch, executor="process", batch_format="pandas"),
}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("what", ELSEWHERE)
def test_what_another_process_has_made_stays_as_it_was_made(what: str) -> None:
    """Also when that process has made the next batch."""
    for batch_format in ("pyarrow", "numpy"):
        batches = list(ELSEWHERE[what]().iter_batches(batch_size=10, batch_format=batch_format))
        found = [value for batch in batches for value in np.asarray(batch["s"]).tolist()]
        assert found == [f"text {n}" for n in range(200)]
        lists = [
            list(value)
            for batch in batches
            for value in (batch["l"].to_pylist() if batch_format == "pyarrow" else batch["l"])
        ]
        assert lists == [[n] * (n % 3) for n in range(200)]
        assert [n for batch in batches for n in np.asarray(batch["n"]).tolist()] == list(range(200))


@pytest.mark.usefixtures("one_thread")
def test_arrays_of_different_shapes_from_another_process_stay_as_they_were_made() -> None:
    rows = headway.data.range(60).map(lambda row: {"x": np.full(1 + row["id"] % 3, row["id"])}, executor="process")
    batches = list(rows.iter_batches(batch_size=10))
    assert [x.tolist() for batch in batches for x in batch["x"]] == [[n] * (1 + n % 3) for n in range(60)]


@pytest.mark.usefixtures("one_thread")
def test_a_class_is_made_in_another_process_with_its_arguments() -> None:
    class Scales:
        def __init__(self, by: int) -> None:
            self.by, self.calls = by, 0

        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            self.calls += 1
            batch["id"] *= self.by
            return {**batch, "calls": np.full(len(batch["id"]), self.calls)}

    rows = headway.data.range(30).map_batches(Scales, fn_constructor_args=(3,), executor="process")
    batches = list(rows.iter_batches(batch_size=10))
    assert of(batches) == [3 * n for n in range(30)]
    assert [int(batch["calls"][0]) for batch in batches] == [1, 2, 3]


def test_breaking_out_of_a_loop_leaves_no_process() -> None:
    def slow(row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.01)
        return row

    before = {child.pid for child in psutil.Process().children()}
    rows = headway.data.range(1000).map(slow, executor="process")
    for _ in range(3):
        for _batch in rows.iter_batches(batch_size=5):
            break
    assert {child.pid for child in psutil.Process().children()} <= before


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


def test_filter_with_arguments_and_with_a_class() -> None:
    class Above:
        def __init__(self, least: int) -> None:
            self.least = least

        def __call__(self, row: dict[str, Any]) -> bool:
            return row["id"] > self.least

    assert ids(headway.data.range(5).filter(Above, fn_constructor_args=(2,))) == [3, 4]
    assert ids(headway.data.range(5).filter(lambda row, least: row["id"] > least, fn_args=(3,))) == [4]


def test_batches_of_what_is_left_have_the_size_that_was_asked_for() -> None:
    odd = headway.data.range(100).filter(lambda row: row["id"] % 2)
    assert [len(batch["id"]) for batch in odd.iter_batches(batch_size=8)] == [8] * 6 + [2]
    assert [len(batch["id"]) for batch in odd.iter_batches(batch_size=8, drop_last=True)] == [8] * 6
    assert of(odd.iter_batches(batch_size=8)) == list(range(1, 100, 2))


def test_flat_map_makes_any_number_of_rows_of_each() -> None:
    found = headway.data.range(4).flat_map(lambda row: [{"id": row["id"], "copy": n} for n in range(row["id"])])
    assert [(row["id"], row["copy"]) for row in found.take_all()] == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    assert found.count() == 6


def test_flat_map_may_leave_nothing() -> None:
    none = headway.data.range(4).flat_map(lambda row: [])
    assert (none.take_all(), none.count()) == ([], 0)


def test_rows_hold_numbers_and_strings_as_python_has_them() -> None:
    columns = {
        "s": np.array(["a", "b"]),
        "i": np.arange(2, dtype=np.int16),
        "f": np.zeros(2),
        "b": np.array([True] * 2),
    }
    (row, _) = headway.data.range(2).map_batches(lambda batch: columns).take_all()
    assert {name: type(value) for name, value in row.items()} == {"s": str, "i": int, "f": float, "b": bool}


# --- columns ---


def test_columns_are_selected_dropped_renamed_and_added() -> None:
    assert some().select_columns(["c", "a"]).columns() == ["c", "a"]
    assert some().select_columns("b").take(1) == [{"b": "0"}]
    assert some().drop_columns(["a", "c"]).take(1) == [{"b": "0"}]
    assert some().rename_columns({"a": "x", "b": "y"}).columns() == ["x", "y", "c"]
    assert some().rename_columns(["x", "y", "z"]).columns() == ["x", "y", "z"]
    assert some().rename_columns({"a": "b", "b": "a"}).take(1) == [{"b": 0, "a": "0", "c": 0.0}]
    assert some().add_column("d", lambda frame: frame["a"] * 10).take(2)[1] == {"a": 1, "b": "1", "c": 0.5, "d": 10}


@pytest.mark.parametrize("batch_format", ["numpy", "pandas", "pyarrow"])
def test_a_column_is_added_from_any_form(batch_format: str) -> None:
    def twice(batch: Any) -> Any:
        return pc.multiply(batch["a"], 2) if batch_format == "pyarrow" else batch["a"] * 2

    assert ids(some().add_column("d", twice, batch_format=batch_format), "d") == [2 * n for n in range(10)]


def test_renaming_loses_no_column() -> None:
    """Two columns of one name cannot be."""
    with pytest.raises(DataError, match="b"):
        some().rename_columns({"a": "b"}).take_all()
    with pytest.raises(DataError, match="x"):
        some().rename_columns(["x", "x", "y"]).take_all()


# --- which rows ---


@pytest.mark.parametrize("limit", [0, 1, 7, 10, 11])
@pytest.mark.parametrize("way", ["plain", "mapped", "filtered", "shuffled"])
def test_limit_gives_the_first_rows(limit: int, way: str) -> None:
    dataset = {
        "plain": lambda: headway.data.range(10),
        "mapped": lambda: headway.data.range(10).map(lambda row: {"id": row["id"]}),
        "filtered": lambda: headway.data.range(20).filter(lambda row: row["id"] < 10),
        "shuffled": lambda: headway.data.range(10).random_shuffle(seed=5),
    }[way]()
    assert ids(dataset.limit(limit)) == ids(dataset)[:limit]
    assert dataset.limit(limit).count() == min(limit, 10)


def test_a_limited_dataset_can_be_shuffled_and_limited_again() -> None:
    assert ids(headway.data.range(100).limit(20).limit(10)) == list(range(10))
    assert sorted(ids(headway.data.range(100).limit(20).random_shuffle())) == list(range(20))


def test_union_has_the_rows_of_all_in_order() -> None:
    parts = [headway.data.range(3), headway.data.range(5).filter(lambda row: row["id"] > 2)]
    both = headway.data.range(2).map(lambda row: {"id": row["id"] + 10}).union(*parts)
    assert ids(both) == [10, 11, 0, 1, 2, 3, 4]
    assert both.count() == 7
    assert ids(both.random_shuffle(seed=1).sort("id")) == [0, 1, 2, 3, 4, 10, 11]


def test_union_with_nothing_changes_nothing() -> None:
    empty = headway.data.from_items([])
    assert ids(headway.data.range(3).union(empty)) == ids(empty.union(headway.data.range(3))) == [0, 1, 2]
    assert ids(headway.data.range(3).union()) == [0, 1, 2]


def test_union_widens_numbers() -> None:
    narrow = headway.data.from_arrow(pa.table({"id": pa.array([1, 2], pa.int32())}))
    assert ids(narrow.union(headway.data.range(2))) == [1, 2, 0, 1]


def test_union_of_different_columns_loses_none_in_silence() -> None:
    one, two = headway.data.range(2), headway.data.from_items([{"id": 1, "more": 5}])
    with pytest.raises(DataError, match="more"):
        one.union(two).take_all()
    with pytest.raises(DataError, match="more"):
        two.union(one).take_all()


@pytest.mark.parametrize(("left", "right"), [(1, 7), (3, 4), (10, 2), (1, 1)])
def test_zip_has_the_columns_of_all_side_by_side(left: int, right: int) -> None:
    a = headway.data.range(10, override_num_blocks=left)
    b = headway.data.range(10, override_num_blocks=right).map(lambda row: {"square": row["id"] ** 2})
    assert a.zip(b).take_all() == [{"id": n, "square": n * n} for n in range(10)]
    assert a.zip(b, a).columns() == ["id", "square", "id_1"]


def test_zip_numbers_equal_names_and_wants_equal_lengths() -> None:
    three = headway.data.range(3)
    assert three.zip(three, three).take(1) == [{"id": 0, "id_1": 0, "id_2": 0}]
    with pytest.raises(DataError, match="3 and 4"):
        three.zip(headway.data.range(4))


def test_zip_with_what_is_filtered() -> None:
    odd = headway.data.range(6).filter(lambda row: row["id"] % 2).rename_columns({"id": "odd"})
    assert headway.data.range(3).zip(odd).take_all() == [{"id": 0, "odd": 1}, {"id": 1, "odd": 3}, {"id": 2, "odd": 5}]


# --- in which order ---


@pytest.mark.parametrize("how", ["window", "full"])
def test_a_shuffled_iterator_has_another_order_and_the_same_rows_in_each_epoch(how: str) -> None:
    batches = headway.data.range(500).random_shuffle(shuffle=how).iter_batches(batch_size=64)
    epochs = [of(batches) for _ in range(3)]
    assert all(sorted(epoch) == list(range(500)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in [*epochs, list(range(500))]}) == 4


@pytest.mark.parametrize("how", ["window", "full"])
def test_equal_seeds_give_equal_orders(how: str) -> None:
    one, two, other = (
        [of(batches), of(batches)]
        for batches in (headway.data.range(100).random_shuffle(seed=n, shuffle=how).iter_batches() for n in (1, 1, 2))
    )
    assert one == two
    assert one != other


def test_a_full_shuffle_brings_rows_from_everywhere_together() -> None:
    order = ids(headway.data.range(10_000, override_num_blocks=50).random_shuffle(shuffle="full", seed=1))
    counts = collections.Counter(number // 1000 for number in order[:1000])
    assert all(60 < counts[part] < 140 for part in range(10))


def test_a_small_window_keeps_pieces_together_and_a_large_one_does_not() -> None:
    rows = headway.data.range(10_000, override_num_blocks=100)
    small = ids(rows.random_shuffle(seed=1, window_rows=100))
    large = ids(rows.random_shuffle(seed=1, window_rows=10_000))
    assert sorted(small) == sorted(large) == list(range(10_000))
    assert len({number // 100 for number in small[:100]}) <= 2
    assert len({number // 100 for number in large[:100]}) > 20


def test_what_is_filtered_or_mapped_is_shuffled_too() -> None:
    odd = headway.data.range(100).filter(lambda row: row["id"] % 2).random_shuffle().iter_batches(batch_size=7)
    first, second = of(odd), of(odd)
    assert sorted(first) == sorted(second) == list(range(1, 100, 2))
    assert first != second
    after = headway.data.range(100).random_shuffle().map(lambda row: {"id": -row["id"]})
    assert sorted(ids(after)) == list(range(-99, 1))


def test_randomize_block_order_keeps_the_rows_of_a_block_together() -> None:
    batches = headway.data.range(100, override_num_blocks=10).randomize_block_order(seed=3).iter_batches(batch_size=10)
    first, second = ([batch["id"].tolist() for batch in batches] for _ in range(2))
    for epoch in (first, second):
        assert sorted(epoch) == [list(range(n, n + 10)) for n in range(0, 100, 10)]
    assert first != second != sorted(second)


def test_sort_by_one_column_and_by_several() -> None:
    rows = [{"a": a, "b": b} for a, b in [(2, "x"), (1, "y"), (2, "w"), (1, "z")]]
    dataset = headway.data.from_items(rows)
    assert ids(dataset.sort("b"), "b") == ["w", "x", "y", "z"]
    assert ids(dataset.sort("b", descending=True), "b") == ["z", "y", "x", "w"]
    assert ids(dataset.sort(["a", "b"], descending=[True, False]), "b") == ["w", "x", "y", "z"]
    assert dataset.take_all() == rows


def test_sort_keeps_the_other_columns_of_a_row() -> None:
    rows = [{"n": (n * 7) % 20, "x": np.full(2, (n * 7) % 20), "r": np.zeros((n * 7) % 20)} for n in range(20)]
    found = headway.data.from_items(rows).sort("n").take_all()
    assert [(row["n"], row["x"].tolist(), len(row["r"])) for row in found] == [(n, [n, n], n) for n in range(20)]


def test_sort_puts_nulls_last() -> None:
    assert ids(headway.data.from_items([3, None, 1]).sort("item"), "item") == [1, 3, None]


def test_nothing_can_be_sorted_and_grouped() -> None:
    nothing = headway.data.range(5).filter(lambda row: False)
    assert nothing.sort("id").take_all() == []
    assert nothing.groupby("id").count().take_all() == []


@pytest.mark.parametrize("blocks", [1, 3, 10, 25])
def test_repartition_changes_the_blocks_and_not_the_rows(blocks: int) -> None:
    for dataset in (headway.data.range(10), headway.data.range(20).filter(lambda row: row["id"] < 10)):
        parts = dataset.repartition(blocks)
        assert (parts.num_blocks(), ids(parts)) == (blocks, list(range(10)))


# --- parts ---


@pytest.mark.parametrize(("size", "tested"), [(0.25, 25), (10, 10), (0.5, 50)])
def test_a_split_for_training_and_testing_is_disjoint_and_whole(size: float, tested: int) -> None:
    train, test = headway.data.range(100).train_test_split(size)
    assert (ids(train), ids(test)) == (list(range(100 - tested)), list(range(100 - tested, 100)))
    train, test = headway.data.range(100).train_test_split(size, shuffle=True, seed=4)
    assert (train.count(), test.count()) == (100 - tested, tested)
    assert sorted(ids(train) + ids(test)) == list(range(100))
    assert sorted(ids(test)) != list(range(100 - tested, 100))
    again = headway.data.range(100).train_test_split(size, shuffle=True, seed=4)
    assert [sorted(ids(part)) for part in again] == [sorted(ids(train)), sorted(ids(test))]


def test_both_parts_of_a_shuffled_split_are_shuffled_in_every_epoch() -> None:
    train, _ = headway.data.range(100).map(lambda row: {"id": row["id"]}).train_test_split(0.2, shuffle=True)
    batches = train.iter_batches()
    first, second = of(batches), of(batches)
    assert first != second
    assert sorted(first) == sorted(second)


@pytest.mark.parametrize("size", [0, 100, 1.0, 0.0, 200, -1])
def test_a_split_must_leave_rows_on_both_sides(size: float) -> None:
    with pytest.raises(DataError, match="test_size"):
        headway.data.range(100).train_test_split(size)


def test_parts_of_neighbouring_rows() -> None:
    rows = headway.data.range(10)
    assert [ids(part) for part in rows.split(3)] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert [part.count() for part in rows.split(3, equal=True)] == [3, 3, 3]
    assert [ids(part) for part in headway.data.range(2).split(3)] == [[0], [1], []]
    assert [ids(part) for part in rows.split_at_indices([2, 2, 50])] == [[0, 1], [], [2, 3, 4, 5, 6, 7, 8, 9], []]
    assert [part.count() for part in rows.split_proportionately([0.2, 0.5])] == [2, 5, 3]


def test_parts_of_what_is_shuffled_are_disjoint() -> None:
    parts = [ids(part) for part in headway.data.range(100).random_shuffle(seed=2).split(4)]
    assert sorted(itertools.chain(*parts)) == list(range(100))
    assert parts[0] != sorted(parts[0])


def test_a_split_calls_a_filter_once_for_each_row() -> None:
    """A function that is not the same twice would lose rows otherwise."""
    calls: list[int] = []

    def odd(row: dict[str, Any]) -> bool:
        calls.append(row["id"])
        return bool(row["id"] % 2)

    parts = headway.data.range(10).filter(odd).split(2)
    assert [ids(part) for part in parts] == [[1, 3, 5], [7, 9]]
    assert sorted(calls) == list(range(10))


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


def test_older_words_change_nothing() -> None:
    rows = headway.data.range(5)
    assert ids(rows.pipeline(length=3)) == ids(rows.window(blocks_per_window=2)) == ids(rows.repeat(2)) == ids(rows)


Model = tuple[Dataset, list[int]]

STEPS: dict[str, Callable[[Dataset, list[int], int], Model]] = {
    "map": lambda rows, ids, n: (rows.map(lambda row: {"id": row["id"] + n}), [each + n for each in ids]),
    "map_batches": lambda rows, ids, n: (
        rows.map_batches(lambda batch: {"id": batch["id"] * 2}, batch_size=n + 1),
        [each * 2 for each in ids],
    ),
    "filter": lambda rows, ids, n: (rows.filter(lambda row: row["id"] % (n + 1)), [e for e in ids if e % (n + 1)]),
    "expr": lambda rows, ids, n: (rows.filter(expr=f"id > {n}"), [each for each in ids if each > n]),
    "flat_map": lambda rows, ids, n: (
        rows.flat_map(lambda row: [row] * (row["id"] % 3)),
        [e for e in ids for _ in range(e % 3)],
    ),
    "limit": lambda rows, ids, n: (rows.limit(n * 3), ids[: n * 3]),
    "union": lambda rows, ids, n: (rows.union(headway.data.range(n)), [*ids, *range(n)]),
    "self": lambda rows, ids, n: (rows.union(rows), ids + ids),
    "repartition": lambda rows, ids, n: (rows.repartition(n + 1), ids),
    "rename": lambda rows, ids, n: (rows.rename_columns({"id": "x"}).rename_columns({"x": "id"}), ids),
    "add": lambda rows, ids, n: (rows.add_column("y", lambda f: f["id"]).select_columns(["id"]), ids),
    "split": lambda rows, ids, n: (rows.split(2)[0], ids[: -(-len(ids) // 2)]),
    "second part": lambda rows, ids, n: (rows.split(2)[1], ids[-(-len(ids) // 2) :]),
    "zip": lambda rows, ids, n: (rows.zip(rows).drop_columns("id_1"), ids),
    "sort": lambda rows, ids, n: (rows.sort("id"), sorted(ids)),
    "materialize": lambda rows, ids, n: (rows.materialize(), ids),
    "frozen": lambda rows, ids, n: (rows.random_shuffle(seed=n).sort("id"), sorted(ids)),
}


@given(
    st.integers(0, 30),
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 5)), max_size=5),
    st.integers(1, 9),
)
@example(0, 1, [("add", 0), ("sort", 0)], 1)
@settings(max_examples=150)
def test_any_operations_one_after_the_other_give_what_lists_would(
    rows: int, blocks: int, steps: list[tuple[str, int]], size: int
) -> None:
    dataset, expected = headway.data.range(rows, override_num_blocks=blocks), list(range(rows))
    for name, number in steps:
        dataset, expected = STEPS[name](dataset, expected, number)
    assert dataset.count() == len(expected)
    batches = dataset.iter_batches(batch_size=size)
    for _ in range(2):
        found = [batch["id"].tolist() for batch in batches]
        assert list(itertools.chain(*found)) == expected
        assert all(len(batch) == size for batch in found[:-1])
    assert sorted(of(dataset.random_shuffle().iter_batches(batch_size=size))) == sorted(expected)


# --- looking at it ---


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


def test_the_first_rows_as_dicts_as_a_batch_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = headway.data.range(100)
    assert rows.take(2) == [{"id": 0}, {"id": 1}]
    assert len(rows.take()) == 20
    assert rows.take(0) == []
    assert len(rows.take(1000)) == 100
    assert rows.take_batch(3)["id"].tolist() == [0, 1, 2]
    assert rows.take_batch(3, batch_format="pandas").to_dict("list") == {"id": [0, 1, 2]}
    assert rows.take_batch(3, batch_format="pyarrow") == pa.table({"id": [0, 1, 2]})
    rows.show(2)
    assert capsys.readouterr().out == "{'id': 0}\n{'id': 1}\n"


def test_the_first_rows_do_not_need_the_others() -> None:
    seen: list[int] = []

    def watched(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row["id"])
        return row

    assert headway.data.range(100_000).map(watched).take(3) == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert len(seen) < 1000


def test_all_rows_within_a_limit() -> None:
    rows = headway.data.range(10)
    assert len(rows.take_all(limit=10)) == len(rows.to_pandas(limit=10)) == 10
    with pytest.raises(DataError, match="9"):
        rows.take_all(limit=9)
    with pytest.raises(DataError, match="9"):
        rows.to_pandas(limit=9)


def test_a_frame_of_all_rows() -> None:
    frame = some(3000).to_pandas()
    pd.testing.assert_frame_equal(
        frame, pd.DataFrame({"a": range(3000), "b": map(str, range(3000)), "c": np.arange(3000) / 2}), check_dtype=False
    )
    tensors = headway.data.range_tensor(3, shape=(2,)).to_pandas()
    assert [value.tolist() for value in tensors["data"]] == [[0, 0], [1, 1], [2, 2]]


def test_it_says_what_it_is_and_is_not_iterated_itself() -> None:
    rows = headway.data.range(1000).map(lambda row: row)
    assert repr(rows) == "Dataset(range(1,000) → map(<lambda>), 1,000 rows)"
    with pytest.raises(TypeError, match="iter_batches"):
        iter(rows)
    with pytest.raises(TypeError, match="count"):
        len(rows)


# --- iterating ---


def test_rows_are_iterated_in_every_epoch() -> None:
    rows = headway.data.range(2500).iter_rows()
    assert [row["id"] for row in rows] == list(range(2500))
    assert [row["id"] for row in rows] == list(range(2500))


@pytest.mark.parametrize("batch_format", ["numpy", "default", "pandas", "pyarrow", None])
def test_batches_come_in_every_form(batch_format: str | None) -> None:
    kinds = {"numpy": dict, "default": dict, "pandas": pd.DataFrame, "pyarrow": pa.Table, None: pa.Table}
    batches = list(some(10).iter_batches(batch_size=4, batch_format=batch_format))
    assert [type(batch) for batch in batches] == [kinds[batch_format]] * 3
    assert [len(batch["a"]) for batch in batches] == [4, 4, 2]
    values = [list(batch["b"].to_pylist() if batch_format in ("pyarrow", None) else batch["b"]) for batch in batches]
    assert list(itertools.chain(*values)) == [str(n) for n in range(10)]


@pytest.mark.parametrize(("size", "drop", "sizes"), [(4, False, [4, 4, 2]), (4, True, [4, 4]), (None, False, [10])])
def test_batches_have_their_size(size: int | None, drop: bool, sizes: list[int]) -> None:
    for prefetch in (0, 1, 5):
        batches = headway.data.range(10).iter_batches(batch_size=size, drop_last=drop, prefetch_batches=prefetch)
        assert [len(batch["id"]) for batch in batches] == sizes
        assert len(batches) == len(sizes)
    assert len(list(headway.data.range(3).iter_batches(drop_last=True))) == 0


@pytest.mark.parametrize("buffer", [1, 10, 64, 1000])
def test_a_local_shuffle_keeps_batch_sizes_and_rows(buffer: int) -> None:
    batches = headway.data.range(100).iter_batches(batch_size=8, local_shuffle_buffer_size=buffer, local_shuffle_seed=1)
    found = [batch["id"].tolist() for batch in batches]
    assert [len(batch) for batch in found] == [8] * 12 + [4]
    flat = list(itertools.chain(*found))
    assert sorted(flat) == list(range(100))
    assert (flat == list(range(100))) == (buffer == 1)
    assert all(abs(at - number) < 2 * buffer for at, number in enumerate(flat))


def test_a_local_shuffle_is_another_one_in_each_epoch_and_the_same_for_a_seed() -> None:
    one, two = (
        headway.data.range(100).iter_batches(local_shuffle_buffer_size=50, local_shuffle_seed=7) for _ in range(2)
    )
    first, second = of(one), of(one)
    assert first != second
    assert [of(two), of(two)] == [first, second]


def test_a_filtered_dataset_has_no_length() -> None:
    with pytest.raises(TypeError, match="filter"):
        len(headway.data.range(10).filter(lambda row: True).iter_batches())


def test_two_iterators_of_one_dataset_do_not_meet() -> None:
    rows = headway.data.range(10)
    one, two = rows.iter_batches(batch_size=2), rows.iter_batches(batch_size=2)
    assert [a["id"].tolist() == b["id"].tolist() for a, b in zip(one, two, strict=True)] == [True] * 5


@pytest.mark.timeout(20)
def test_an_iterator_that_another_one_has_overtaken_does_not_hang() -> None:
    """Both are of one object: it may go on, end or be refused, but it must not wait for ever."""
    batches = headway.data.range(100).iter_batches(batch_size=2)
    one = iter(batches)
    next(one)
    two = iter(batches)
    next(two)
    done = threading.Event()

    def rest() -> None:
        try:
            for _ in one:
                pass
        except Exception:
            pass
        done.set()

    thread = threading.Thread(target=rest, daemon=True)
    thread.start()
    assert done.wait(5), "it hangs"
    thread.join()
    two.close()  # type: ignore[attr-defined]


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("headway-data")}


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize("filtered", [False, True])
def test_breaking_out_of_a_loop_leaves_no_thread(filtered: bool) -> None:
    made: list[int] = []

    def counted(batch: dict[str, Any]) -> dict[str, Any]:
        made.append(len(batch["id"]))
        return batch

    rows = headway.data.range(100_000, override_num_blocks=1000).map_batches(counted)
    rows = rows.filter(lambda row: True) if filtered else rows
    before = threads()
    for _ in range(40):
        for _batch in rows.iter_batches(batch_size=10):
            break
    for _row in rows.iter_rows():
        break
    next(iter(rows.iter_torch_batches()))
    assert threads() <= before
    assert sum(made) < 42 * 100_000 / 10, "nobody waits for what is not needed"


def test_after_a_break_the_next_epoch_begins() -> None:
    batches = headway.data.range(100).random_shuffle().iter_batches(batch_size=10)
    first = next(iter(batches))["id"].tolist()
    second = of(batches)
    assert sorted(second) == list(range(100))
    assert second[:10] != first


def test_an_iterator_that_is_never_iterated_starts_nothing() -> None:
    before = threads()
    headway.data.range(10).iter_batches()
    headway.data.range(10).iter_torch_batches()
    assert threads() <= before


# --- nobody is changed behind their back ---


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


def test_a_tensor_of_a_batch_may_be_changed() -> None:
    batches = headway.data.from_numpy({"x": np.arange(6.0)}).iter_torch_batches(batch_size=4)
    for _ in range(2):
        found = []
        for batch in batches:
            found += batch["x"].tolist()
            batch["x"].zero_()
        assert found == list(range(6))


def test_every_operation_leaves_the_old_dataset_as_it_was() -> None:
    rows = some()
    before = rows.take_all()
    rows.map(lambda row: {"a": 0})
    rows.map_batches(lambda batch: {"a": batch["a"] * 0}).take_all()
    rows.random_shuffle().take_all()
    rows.sort("a", descending=True).take_all()
    rows.drop_columns(["a"]).take_all()
    rows.rename_columns({"a": "x"}).take_all()
    rows.limit(2).take_all()
    rows.union(rows).take_all()
    rows.add_column("d", lambda frame: 0 * frame["a"]).take_all()
    assert rows.take_all() == before
    assert (rows.columns(), rows.count()) == (["a", "b", "c"], 10)


def never(*args: Any) -> Any:
    raise AssertionError("nobody has asked for rows")


LAZY: dict[str, Callable[[Dataset], Any]] = {
    "map": lambda rows: rows.map(never),
    "map_batches": lambda rows: rows.map_batches(never),
    "filter": lambda rows: rows.filter(never),
    "flat_map": lambda rows: rows.flat_map(never),
    "add_column": lambda rows: rows.add_column("x", never),
    "a class": lambda rows: rows.map_batches(type("Never", (), {"__init__": never, "__call__": never})),
    "count": lambda rows: rows.map(never).count(),
    "repr": lambda rows: repr(rows.filter(never)),
    "shuffle": lambda rows: rows.map(never).random_shuffle().randomize_block_order(),
    "limit": lambda rows: rows.map(never).limit(3),
    "union": lambda rows: rows.map(never).union(rows.map(never)),
    "zip": lambda rows: rows.map(never).zip(rows),
    "split": lambda rows: rows.map(never).split(3),
    "train_test_split": lambda rows: rows.map(never).train_test_split(0.5, shuffle=True),
    "repartition": lambda rows: rows.map(never).repartition(3),
    "streaming_split": lambda rows: rows.map(never).streaming_split(2),
    "iter_batches": lambda rows: rows.map(never).iter_batches(),
    "filter, limit": lambda rows: rows.filter(never).limit(3),
    "filter, union": lambda rows: rows.filter(never).union(rows),
    "filter, shuffle": lambda rows: rows.filter(never).random_shuffle(),
    "filter, repartition": lambda rows: rows.filter(never).repartition(2),
    "sort": lambda rows: rows.map(never).sort("id"),
    "groupby": lambda rows: rows.map(never).groupby("id").count(),
}


@pytest.mark.parametrize("what", LAZY)
def test_no_function_is_called_before_rows_are_asked_for(what: str) -> None:
    made = LAZY[what](headway.data.range(10))
    some = made[0] if isinstance(made, list | tuple) else made
    if isinstance(some, Dataset):  # and then it is
        with pytest.raises(AssertionError, match="nobody has asked for rows"):
            some.take_all()


def test_a_materialized_dataset_does_not_call_its_functions_again() -> None:
    calls = itertools.count()

    def counted(row: dict[str, Any]) -> dict[str, Any]:
        next(calls)
        return {"id": row["id"], "x": np.full(2, row["id"]), "s": str(row["id"])}

    rows = headway.data.range(10).map(counted).filter(lambda row: row["id"] > 1).materialize()
    assert next(calls) == 10
    for _ in range(2):
        assert [(row["id"], row["x"].tolist(), row["s"]) for row in rows.take_all()] == [
            (n, [n, n], str(n)) for n in range(2, 10)
        ]
    assert rows.count() == 8
    assert next(calls) == 11


def test_arrays_of_different_shapes_can_be_kept_and_collected() -> None:
    """More of them than fit into one chunk; the first chunk has one shape only."""
    rows = headway.data.range(3000).map(lambda row: {"x": np.full(1 + row["id"] // 1024, row["id"])})
    expected = [1 + n // 1024 for n in range(3000)]
    assert [len(row["x"]) for row in rows.take_all()] == expected
    assert [len(value) for value in rows.to_pandas()["x"]] == expected
    assert [len(row["x"]) for row in rows.materialize().take_all()] == expected
    assert rows.to_arrow().num_rows == 3000


def test_arrays_of_different_shapes_meet_in_a_shuffled_batch() -> None:
    rows = headway.data.from_items([{"n": n, "x": np.full(1 + n % 3, n)} for n in range(30)], override_num_blocks=5)
    for row in rows.random_shuffle(seed=1).take_all():
        assert row["x"].tolist() == [row["n"]] * (1 + row["n"] % 3)
    assert [len(row["x"]) for row in rows.filter(expr="n > 10").take_all()] == [1 + n % 3 for n in range(11, 30)]


def test_objects_that_no_column_can_hold_go_through() -> None:
    rows = headway.data.range(3).map(lambda row: {"id": row["id"], "o": {row["id"], "x"}})
    assert [row["o"] for row in rows.materialize().take_all()] == [{n, "x"} for n in range(3)]


def test_stats_tell_what_was_done() -> None:
    def doubled(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"] * 2}

    rows = headway.data.range(500).map(doubled)
    assert rows.stats() == "nothing has been read yet"
    rows.take_all()
    first, source, step, *_ = rows.stats().splitlines()
    assert first.startswith("500 rows in ")
    assert source.startswith("  range(500): 500 rows in ")
    assert step.startswith("  map(doubled): 500 rows in ")


# --- torch ---


def test_batches_are_tensors_of_the_type_of_their_column() -> None:
    columns = {
        "i": (np.arange(3), torch.int64),
        "f": (np.arange(3, dtype=np.float32), torch.float32),
        "b": (np.array([True, False, True]), torch.bool),
        "u": (np.zeros((3, 2, 2), np.uint8), torch.uint8),
        "h": (np.arange(3, dtype=np.float16), torch.float16),
    }
    (batch,) = headway.data.from_numpy({name: array for name, (array, _) in columns.items()}).iter_torch_batches()
    assert {name: tensor.dtype for name, tensor in batch.items()} == {name: kind for name, (_, kind) in columns.items()}
    assert batch["u"].shape == (3, 2, 2)


def test_lists_of_one_length_are_one_tensor() -> None:
    (batch,) = headway.data.from_items([{"x": [n, n + 1]} for n in range(3)]).iter_torch_batches()
    assert batch["x"].tolist() == [[0, 1], [1, 2], [2, 3]]


def test_dtypes_are_one_for_all_or_one_by_column() -> None:
    rows = headway.data.from_numpy({"x": np.arange(3), "y": np.arange(3.0)})
    (one,) = rows.iter_torch_batches(dtypes=torch.float32)
    assert (one["x"].dtype, one["y"].dtype) == (torch.float32, torch.float32)
    (each,) = rows.iter_torch_batches(dtypes={"y": torch.int32})
    assert (each["x"].dtype, each["y"].dtype) == (torch.int64, torch.int32)


def test_torch_batches_are_made_once_and_iterated_in_every_epoch() -> None:
    batches = headway.data.range(10).random_shuffle().iter_torch_batches(batch_size=4, device="cpu")
    first, second = of(batches), of(batches)
    assert len(batches) == 3
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert len(headway.data.range(10).iter_torch_batches(batch_size=4, drop_last=True)) == 2


def test_a_collate_function_makes_what_the_loop_gets() -> None:
    def collated(batch: dict[str, np.ndarray[Any, Any]]) -> tuple[torch.Tensor, list[str]]:
        return torch.from_numpy(batch["a"]) * 10, list(batch["b"])

    pairs = list(some(5).iter_torch_batches(batch_size=3, collate_fn=collated))
    assert [tensor.tolist() for tensor, _ in pairs] == [[0, 10, 20], [30, 40]]
    assert [texts for _, texts in pairs] == [["0", "1", "2"], ["3", "4"]]


@pytest.mark.parametrize(
    ("base", "kind"),
    [(ArrowBatchCollateFn, pa.Table), (NumpyBatchCollateFn, dict), (PandasBatchCollateFn, pd.DataFrame)],
)
def test_a_collate_class_says_in_which_form_it_wants_a_batch(base: Any, kind: type) -> None:
    class Own(base):  # type: ignore[misc]
        def __call__(self, batch: Any) -> Any:
            assert isinstance(batch, kind)
            return {"sum": torch.tensor(int(np.asarray(batch["a"]).sum()))}

    assert [int(batch["sum"]) for batch in some(5).iter_torch_batches(batch_size=3, collate_fn=Own())] == [3, 7]


def test_to_torch_gives_features_and_label() -> None:
    rows = headway.data.from_items([{"x": n, "y": n * 10, "label": n % 2} for n in range(6)])
    pairs = rows.to_torch(label_column="label", feature_columns=["x", "y"], batch_size=4)
    found = list(pairs)
    assert [features.shape for features, _ in found] == [(4, 2), (2, 2)]
    assert found[0][0].tolist() == [[0, 0], [1, 10], [2, 20], [3, 30]]
    assert found[0][1].tolist() == [[0], [1], [0], [1]]
    assert len(pairs) == 2
    assert len(list(pairs)) == 2


@pytest.mark.parametrize("filtered", [False, True])
def test_batches_may_be_filled_up_with_their_own_rows(filtered: bool) -> None:
    rows = headway.data.range(10)
    if filtered:
        rows = rows.filter(lambda row: row["id"] < 7)
    expected = [[0, 1, 2], [3, 4, 5], [6, 6, 6]] if filtered else [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 9, 9]]
    assert [batch["id"].tolist() for batch in rows.iter_batches(batch_size=3, pad_last=True)] == expected
    assert [batch["id"].tolist() for batch in rows.iter_torch_batches(batch_size=3, pad_last=True)] == expected
    parts = headway.data.range(11).streaming_split(2)
    sizes = [[len(batch["id"]) for batch in part.iter_batches(batch_size=3, pad_last=True)] for part in parts]
    assert sizes == [[3, 3], [3, 3]]
    with pytest.raises(DataError, match="choose one"):
        rows.iter_batches(batch_size=3, pad_last=True, drop_last=True)


def test_without_a_name_the_last_column_is_the_label() -> None:
    rows = headway.data.from_items([{"x": n, "y": -n} for n in range(4)])
    ((features, label),) = rows.to_torch(batch_size=4, label_column_dtype=torch.float32)
    assert features.tolist() == [[0], [1], [2], [3]]
    assert (label.tolist(), label.dtype) == ([[0], [-1], [-2], [-3]], torch.float32)
    ((features, label),) = rows.to_torch(batch_size=4, feature_columns=["y"])
    assert label is None, "who chooses features chooses all"
    ((features, label),) = headway.data.range(2).to_torch(batch_size=2)
    assert (features.tolist(), label) == ([[0], [1]], None)


def test_to_torch_may_leave_the_label_flat_and_take_dtypes() -> None:
    rows = headway.data.from_items([{"x": n, "label": n % 2} for n in range(4)])
    ((features, label),) = rows.to_torch(
        label_column="label",
        batch_size=4,
        unsqueeze_label_tensor=False,
        label_column_dtype=torch.float32,
        feature_column_dtypes={"x": torch.float64},
    )
    assert (label.shape, label.dtype) == ((4,), torch.float32)
    assert (features.shape, features.dtype) == ((4, 1), torch.float64)


def test_one_feature_dtype_is_used_beside_that_of_the_label() -> None:
    rows = headway.data.from_items([{"x": n, "label": n % 2} for n in range(4)])
    ((features, label),) = rows.to_torch(
        label_column="label", batch_size=4, label_column_dtype=torch.int32, feature_column_dtypes=torch.float32
    )
    assert (features.dtype, label.dtype) == (torch.float32, torch.int32)


# --- writing ---


TABLE = pa.table(
    {
        "i": [1, None, 3, 4],
        "f": [0.5, 1.5, None, 2.5],
        "s": ["a", "ü", None, "x,y"],
        "b": [True, None, False, True],
        "l": [[1], [], [2, 3], None],
        "t": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype=np.float32).reshape(4, 2, 3)),
    }
)


def test_what_is_written_as_parquet_comes_back(tmp_path: Path) -> None:
    headway.data.from_arrow(TABLE).write_parquet(tmp_path / "out")
    assert headway.data.read_parquet(tmp_path / "out").to_arrow() == TABLE
    assert pq.read_table(tmp_path / "out").num_rows == 4, "and others can read it"
    assert [path.suffix for path in (tmp_path / "out").iterdir()] == [".parquet"]


def test_what_is_written_as_csv_and_json_comes_back(tmp_path: Path) -> None:
    rows = [{"i": 1, "f": 0.5, "s": "a"}, {"i": 2, "f": -1.5, "s": 'x,"y"'}]
    headway.data.from_items(rows).write_csv(tmp_path / "csv")
    headway.data.from_items(rows).write_json(tmp_path / "json")
    assert headway.data.read_csv(tmp_path / "csv").take_all() == rows
    assert headway.data.read_json(tmp_path / "json").take_all() == rows
    headway.data.from_arrow(TABLE).write_json(tmp_path / "more")
    back = headway.data.read_json(tmp_path / "more").take_all()
    assert [row["l"] for row in back] == [[1], [], [2, 3], None]
    assert back[1]["t"] == [[6, 7, 8], [9, 10, 11]]


def test_numbers_that_are_none_come_back_from_json(tmp_path: Path) -> None:
    headway.data.from_numpy({"n": np.arange(3), "x": np.array([1.0, np.nan, 2.0])}).write_json(tmp_path)
    back = [row["x"] for row in headway.data.read_json(tmp_path).take_all()]
    assert back[0::2] == [1.0, 2.0]
    assert np.isnan(back[1])


def test_a_timestamp_is_written_as_json(tmp_path: Path) -> None:
    frame = pd.DataFrame({"t": pd.to_datetime(["2020-01-01 01:02:03", "2021-01-01 00:00:00"])})
    headway.data.from_pandas(frame).write_json(tmp_path)
    back = headway.data.read_json(tmp_path).take_all()
    assert [pd.Timestamp(row["t"]) for row in back] == list(frame["t"])


def test_arrays_of_any_shape_come_back_from_parquet(tmp_path: Path) -> None:
    rows = [{"n": n, "x": np.full((n, 2), n, np.float32), "b": np.array([n % 2 == 0, True])} for n in range(5)]
    headway.data.from_items(rows, override_num_blocks=1).write_parquet(tmp_path)
    back = headway.data.read_parquet(tmp_path).take_all()
    assert [row["n"] for row in back] == list(range(5))
    for row in back:
        assert np.array_equal(row["x"], rows[row["n"]]["x"])
        assert row["x"].dtype == np.float32
        assert row["b"].tolist() == [row["n"] % 2 == 0, True]


def test_row_groups_have_the_size_that_was_asked_for(tmp_path: Path) -> None:
    headway.data.range(100).write_parquet(tmp_path, row_group_rows=30)
    back = headway.data.read_parquet(tmp_path)
    assert (back.num_blocks(), back.count()) == (4, 100)


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_a_shorter_dataset_takes_the_place_of_a_longer_one(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.data.operations.write.FILE_BYTES", 1)
    (tmp_path / f"mine.{form}").write_text("")
    (tmp_path / "part-000001.txt").write_text("")
    getattr(headway.data.range(5000), f"write_{form}")(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    getattr(headway.data.range(3), f"write_{form}")(tmp_path)
    after = {path.name for path in tmp_path.iterdir()}
    assert len(before) > len(after)
    assert after == {f"part-000000.{form}", f"mine.{form}", "part-000001.txt"}
    back = getattr(headway.data, f"read_{form}")(tmp_path / f"part-000000.{form}")
    assert [row["id"] for row in back.take_all()] == [0, 1, 2]


def test_a_dataset_may_be_written_to_the_folder_that_it_is_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.data.operations.write.FILE_BYTES", 1)
    headway.data.range(5000).write_parquet(tmp_path)
    headway.data.read_parquet(tmp_path).filter(lambda row: row["id"] % 100 == 0).write_parquet(tmp_path)
    assert [row["id"] for row in headway.data.read_parquet(tmp_path).take_all()] == list(range(0, 5000, 100))


def test_a_write_that_fails_leaves_what_was_there_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.data.operations.write.FILE_BYTES", 1)
    headway.data.range(5000).write_parquet(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ZeroDivisionError):
        headway.data.read_parquet(tmp_path).map(lambda row: {"id": 1 / (row["id"] - 3000)}).write_parquet(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_two_writes_to_one_folder_are_never_mixed(tmp_path: Path) -> None:
    def write_there(row: dict[str, Any]) -> dict[str, Any]:
        with pytest.raises(DataError, match="is being written by another program, or by another worker"):
            headway.data.range(3).write_parquet(tmp_path)
        return row

    headway.data.range(5).map(write_there).write_parquet(tmp_path)
    assert [row["id"] for row in headway.data.read_parquet(tmp_path).take_all()] == [0, 1, 2, 3, 4]
    headway.data.range(3).write_parquet(tmp_path)
    assert headway.data.read_parquet(tmp_path).count() == 3


def test_a_write_that_is_killed_while_it_names_its_files_leaves_no_mixture_to_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.data.operations.write.FILE_BYTES", 1)
    headway.data.range(5000).write_parquet(tmp_path)
    number = len(list(tmp_path.iterdir()))
    assert number > 2
    replace = os.replace

    def replace_one(source: str, target: str) -> None:
        if "000001" in target:
            raise SystemExit("killed")
        replace(source, target)

    with monkeypatch.context() as context:
        context.setattr(os, "replace", replace_one)
        with pytest.raises(SystemExit):
            headway.data.range(5000).write_parquet(tmp_path)
    with pytest.raises(DataError, match="holds files of two datasets"):
        headway.data.read_parquet(tmp_path).count()
    headway.data.range(5000).write_parquet(tmp_path)
    assert headway.data.read_parquet(tmp_path).count() == 5000
    assert len(os.listdir(tmp_path)) == number


def test_a_path_may_begin_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    headway.data.range(3).write_parquet("~/rows")
    assert headway.data.read_parquet("~/rows").count() == 3
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_an_address_may_name_a_new_folder_of_this_machine(tmp_path: Path, scheme: str) -> None:
    headway.data.range(3).write_parquet(f"{scheme}://{tmp_path}/new/rows")
    assert headway.data.read_parquet(tmp_path / "new" / "rows").count() == 3
    assert headway.data.read_parquet(f"{scheme}://{tmp_path}/new/rows").count() == 3


def test_rows_whose_key_is_nan_are_one_group() -> None:
    keys = [float("nan"), 1.0, float("nan"), 2.0, float("nan")]
    grouped = headway.data.from_items([{"key": key, "n": n} for n, key in enumerate(keys)]).groupby("key")
    counted = sorted(row["count()"] for row in grouped.count().take_all())
    mapped = sorted(row["n"] for row in grouped.map_groups(lambda group: {"n": [len(group["n"])]}).take_all())
    assert counted == mapped == [1, 1, 3]


VALUES = st.fixed_dictionaries(
    {
        "i": st.integers(-(2**63), 2**63 - 1),
        "f": st.floats(allow_nan=False),
        "s": st.text(st.characters(codec="utf-8")),
        "n": st.none() | st.integers(-5, 5),
        "l": st.lists(st.integers(0, 9), max_size=3),
        "b": st.booleans(),
    }
)


@given(st.lists(VALUES, min_size=1, max_size=20))
@settings(max_examples=30)
def test_any_rows_come_back_from_parquet(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        headway.data.from_items(rows).write_parquet(folder, row_group_rows=3)
        assert headway.data.read_parquet(folder).take_all() == rows


@given(st.lists(VALUES, min_size=1, max_size=20), st.integers(1, 7), st.integers(0, 5))
@settings(max_examples=30)
def test_any_rows_are_the_same_after_shuffling_and_batching(rows: list[dict[str, Any]], size: int, seed: int) -> None:
    numbered = [{**row, "number": number} for number, row in enumerate(rows)]
    shuffled = headway.data.from_items(numbered).random_shuffle(seed=seed, window_rows=size)
    found = [row for batch in shuffled.iter_batches(batch_size=size, batch_format=None) for row in batch.to_pylist()]
    assert sorted(found, key=lambda row: row["number"]) == numbered


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "i": st.integers(-(2**62), 2**62),
                "f": st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0),
                "s": st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])).map(lambda t: f"t{t}"),
            }
        ),
        min_size=1,
        max_size=20,
    )
)
@settings(max_examples=30)
def test_any_numbers_and_texts_come_back_from_csv_and_json(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        headway.data.from_items(rows).write_csv(f"{folder}/csv")
        headway.data.from_items(rows).write_json(f"{folder}/json")
        assert headway.data.read_csv(f"{folder}/csv").take_all() == rows
        assert headway.data.read_json(f"{folder}/json").take_all() == rows


# --- parts that are read at the same time ---


@given(st.integers(1, 5), st.integers(0, 60), st.integers(1, 9), st.sampled_from(["no", "window", "full"]))
@settings(max_examples=40)
def test_parts_are_disjoint_whole_and_make_equal_steps(world: int, more: int, size: int, how: str) -> None:
    rows = headway.data.range(world + more, override_num_blocks=5)
    rows = rows if how == "no" else rows.random_shuffle(shuffle=how, seed=1)
    for _ in range(2):
        found = [[batch["id"].tolist() for batch in part.iter_batches(batch_size=size)] for part in split(rows, world)]
        flat = [list(itertools.chain(*part)) for part in found]
        assert sorted(itertools.chain(*flat)) == list(range(world + more))
        assert len({len(part) for part in found}) == 1
        assert max(map(len, flat)) - min(map(len, flat)) <= 1


def split(rows: Dataset, world: int) -> list[Any]:
    return rows.streaming_split(world, equal=True)


def test_a_part_has_as_many_batches_as_it_says_in_every_epoch() -> None:
    parts = headway.data.range(103).random_shuffle().streaming_split(4)
    assert len(parts) == 4
    for part in parts:
        batches = part.iter_torch_batches(batch_size=5)
        first, second = of(batches), of(batches)
        assert len(batches) == -(-103 // 20)
        assert first != second
    with pytest.raises(DataError, match="positive"):
        headway.data.range(3).streaming_split(0)


def test_parts_are_read_at_the_same_time_by_threads() -> None:
    parts = headway.data.range(1000).random_shuffle().streaming_split(3)
    found: list[list[int]] = [[], [], []]

    def consume(number: int) -> None:
        found[number] = of(parts[number].iter_batches(batch_size=16))

    consumers = [threading.Thread(target=consume, args=(number,)) for number in range(3)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join()
    assert sorted(itertools.chain(*found)) == list(range(1000))


def test_parts_of_what_is_filtered_are_disjoint_and_whole() -> None:
    parts = headway.data.range(100).filter(lambda row: row["id"] % 3 == 0).streaming_split(3)
    found = [of(part.iter_batches(batch_size=4)) for part in parts]
    assert sorted(itertools.chain(*found)) == list(range(0, 100, 3))


def test_a_part_knows_the_whole() -> None:
    part, other = headway.data.range(11).streaming_split(2)
    assert (part.count(), other.count()) == (6, 5)
    assert part.schema() == pa.schema([("id", pa.int64())])
    assert part.materialize().count() == 11
    assert "1 of 2" in repr(part)
