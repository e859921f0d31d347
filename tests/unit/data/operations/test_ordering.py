"""Limits, unions, shuffles, sorting, parts."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headway.data
from data_examples import ids, of
from headway.data import DataError


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


def test_union_of_different_columns_loses_none_silently() -> None:
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
