"""Batches, rows and parts."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headway.data
from data_examples import of, some
from headway.data import DataError, Dataset


def split(rows: Dataset, world: int) -> list[Any]:
    return rows.streaming_split(world, equal=True)


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
    with pytest.raises(TypeError, match="an operation changes the number of rows"):
        len(headway.data.range(10).filter(lambda row: True).iter_batches())


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
    with pytest.raises(DataError, match="pad_last requires a batch_size"):
        rows.iter_batches(batch_size=3, pad_last=True, drop_last=True)


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


def test_a_part_knows_its_count_and_the_schema_of_the_whole() -> None:
    part, other = headway.data.range(11).streaming_split(2)
    assert (part.count(), other.count()) == (6, 5)
    assert part.schema() == pa.schema([("id", pa.int64())])
    assert part.materialize().count() == 11
    assert "1 of 2" in repr(part)
