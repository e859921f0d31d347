"""Datasets of numbers, items, tables and torch datasets."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import headway.data
from data_examples import values
from headway.data import DataError


@pytest.mark.parametrize("blocks", [None, 1, 3, 20])
def test_range_has_every_number_once(blocks: int | None) -> None:
    assert values(headway.data.range(17, override_num_blocks=blocks), "id") == list(range(17))


def test_range_is_of_64_bit_integers() -> None:
    assert headway.data.range(3).schema() == pa.schema([("id", pa.int64())])


def test_the_requested_number_of_blocks() -> None:
    assert headway.data.range(10, override_num_blocks=4).num_blocks() == 4
    assert headway.data.from_items(range(10), override_num_blocks=4).num_blocks() == 4


@pytest.mark.parametrize("shape", [(1,), (2, 3), (2, 1, 4)])
def test_range_tensor_is_filled_with_each_number(shape: tuple[int, ...]) -> None:
    batch = headway.data.range_tensor(11, shape=shape).take_batch(11)
    assert batch["data"].shape == (11, *shape)
    assert (batch["data"] == np.arange(11).reshape(-1, *(1 for _ in shape))).all()


def test_items_that_are_dicts_are_rows() -> None:
    rows = [{"a": number, "b": str(number)} for number in range(9)]
    assert headway.data.from_items(rows).take_all() == rows


@pytest.mark.parametrize(
    "items",
    [
        [1, 2, 3],
        [1.5, 2],
        ["a", "", "ü"],
        [b"x", b"\x00"],
        [True, False],
        [None, 1],
        [1, None, 3],
        ["a", None],
        [[1, 2], [3]],
        [[], [1]],
        [2**62 + 1, -1],
        [2**63 + 1, 0],
        [2**63 + 1, -1],
        [1, "a"],
        ["a", 1],
        [1.5, "a"],
        [Decimal("1.10"), Decimal("2.25")],
        [1 + 2j, 3j],
        [date(2020, 1, 1), date(2021, 2, 3)],
    ],
    ids=str,
)
def test_items_that_are_not_dicts_are_a_column(items: list[Any]) -> None:
    back = values(headway.data.from_items(items), "item")
    assert back == items
    assert [isinstance(value, str) for value in back] == [isinstance(value, str) for value in items]


def test_items_may_come_from_a_generator() -> None:
    assert values(headway.data.from_items(n * n for n in range(5)), "item") == [0, 1, 4, 9, 16]


def test_items_with_nested_dicts_come_back() -> None:
    rows = [{"a": {"b": number, "c": ["x"] * number}} for number in range(4)]
    assert headway.data.from_items(rows).take_all() == rows


def test_items_that_are_arrays_keep_their_shapes_and_dtypes() -> None:
    rows = headway.data.from_items([{"x": np.full((n, 2), n, np.float32)} for n in range(4)]).take_all()
    assert [(row["x"].shape, row["x"].dtype) for row in rows] == [((n, 2), np.float32) for n in range(4)]


def test_no_items_are_an_empty_dataset() -> None:
    empty = headway.data.from_items([])
    assert (empty.count(), empty.take_all(), empty.take(3)) == (0, [], [])


def test_several_tables_are_one_dataset() -> None:
    tables = [pa.table({"x": list(range(n, n + 3))}) for n in range(0, 9, 3)]
    assert values(headway.data.from_arrow(tables), "x") == list(range(9))


def test_a_table_of_many_chunks_and_an_offset_keeps_its_rows() -> None:
    table = pa.concat_tables([pa.table({"x": [n, n + 1], "s": [str(n), None]}) for n in range(0, 40, 2)]).slice(3, 30)
    assert headway.data.from_arrow(table).take_all() == table.to_pylist()


def test_a_large_table_is_cut_into_pieces_and_stays_whole() -> None:
    table = pa.table({"x": np.arange(200_000)})
    dataset = headway.data.from_arrow(table)
    assert dataset.num_blocks() > 1
    assert dataset.sum("x") == sum(range(200_000))


@pytest.mark.parametrize("dtype", ["int16", "uint8", "float32", "float16", "bool", "float64"])
@pytest.mark.parametrize("shape", [(20,), (20, 3), (20, 2, 3)])
def test_an_array_keeps_shape_dtype_and_values(dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape)) % 7).reshape(shape).astype(dtype)
    batches = list(headway.data.from_numpy(array).iter_batches(batch_size=7))
    back = np.concatenate([batch["data"] for batch in batches])
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_several_arrays_are_one_dataset_and_a_dict_gives_columns() -> None:
    assert values(headway.data.from_numpy([np.arange(3), np.arange(3, 5)]), "data") == [0, 1, 2, 3, 4]
    named = headway.data.from_numpy({"x": np.arange(3), "y": np.zeros((3, 2))})
    assert named.columns() == ["x", "y"]
    assert named.take_batch()["y"].shape == (3, 2)


def test_later_changes_of_a_list_do_not_change_the_dataset() -> None:
    items = [{"x": 1}, {"x": 2}]
    dataset = headway.data.from_items(items)
    items.append({"x": 3})
    items[0]["x"] = 100
    assert values(dataset, "x") == [1, 2]


class Squares(torch.utils.data.Dataset[Any]):
    def __init__(self, length: int) -> None:
        self.length = length
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number >= self.length:
            raise IndexError(number)
        self.fetched.append(number)
        return {"x": torch.full((2,), float(number)), "y": torch.tensor(number), "z": number**2}


def test_a_torch_dataset_gives_a_row_per_item() -> None:
    batch = headway.data.from_torch(Squares(21)).take_batch(21)
    assert batch["x"].tolist() == [[n, n] for n in range(21)]
    assert batch["x"].dtype == np.float32
    assert batch["y"].tolist() == list(range(21))
    assert batch["z"].tolist() == [n**2 for n in range(21)]


def test_items_of_a_torch_dataset_are_fetched_when_they_are_read() -> None:
    items = Squares(100)
    dataset = headway.data.from_torch(items)
    assert (dataset.count(), items.fetched) == (100, [])
    assert len(dataset.take_all()) == 100
    assert sorted(items.fetched) == list(range(100))


def test_pairs_of_a_torch_dataset_are_a_column() -> None:
    pairs = torch.utils.data.TensorDataset(torch.arange(6.0).reshape(3, 2), torch.tensor([7, 8, 9]))
    rows = headway.data.from_torch(pairs).take_all()
    assert [(np.asarray(row["item"][0]).tolist(), int(row["item"][1])) for row in rows] == [
        ([0, 1], 7),
        ([2, 3], 8),
        ([4, 5], 9),
    ]


def test_items_of_different_shapes_meet_in_one_batch() -> None:
    """Each piece has arrays of one shape, but they have different ones."""

    class Growing(Squares):
        def __getitem__(self, number: int) -> dict[str, Any]:
            return {"x": np.full(1 + number // 4, number)}

    dataset = headway.data.from_torch(Growing(32))
    (batch,) = dataset.iter_batches(batch_size=32)
    assert [array.tolist() for array in batch["x"]] == [[n] * (1 + n // 4) for n in range(32)]
    assert [row["x"].tolist() for row in dataset.take_all()] == [[n] * (1 + n // 4) for n in range(32)]


def test_items_of_different_columns_are_refused() -> None:
    with pytest.raises(DataError, match="differ in b"):
        headway.data.from_items([{"a": 1}, {"a": 1, "b": 2}])
