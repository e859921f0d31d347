"""Every source: nothing is lost, values are exact, and the count is right."""

from __future__ import annotations

import csv as stdlib_csv
import gc
import gzip
import io
import json
import os
import pickle
import tarfile
import weakref
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

import headway.data
from headway.data import DataError, Dataset
from headway.data.datasource import csv_json_text, whole_files
from s3 import S3


def write(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def values(dataset: Dataset, column: str) -> list[Any]:
    rows = [row[column] for row in dataset.take_all()]
    assert dataset.count() == len(rows)
    return rows


# --- numbers, items, frames, arrays ---


@pytest.mark.parametrize("blocks", [None, 1, 3, 20])
def test_range_has_every_number_once(blocks: int | None) -> None:
    assert values(headway.data.range(17, override_num_blocks=blocks), "id") == list(range(17))


def test_range_is_of_64_bit_integers() -> None:
    assert headway.data.range(3).schema() == pa.schema([("id", pa.int64())])


def test_as_many_blocks_as_asked_for() -> None:
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
def test_items_that_are_not_dicts_stand_in_a_column(items: list[Any]) -> None:
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


def test_a_frame_comes_back_as_it_was() -> None:
    frame = pd.DataFrame(
        {
            "i": [1, 2, 3],
            "f": [0.5, np.nan, 2.5],
            "s": ["a", "b", None],
            "t": pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03"]),
            "b": [True, False, True],
        },
        index=[7, 8, 9],
    )
    pd.testing.assert_frame_equal(headway.data.from_pandas(frame).to_pandas(), frame.reset_index(drop=True))


def test_several_frames_are_one_dataset() -> None:
    frames = [pd.DataFrame({"x": [1, 2]}), pd.DataFrame({"x": [3]}), pd.DataFrame({"x": [4, 5]})]
    assert values(headway.data.from_pandas(frames), "x") == [1, 2, 3, 4, 5]


def test_a_categorical_column_keeps_its_values() -> None:
    frame = pd.DataFrame({"c": pd.Categorical(["x", "y", "x", "z"] * 5)})
    assert values(headway.data.from_pandas(frame), "c") == ["x", "y", "x", "z"] * 5
    assert headway.data.from_pandas(frame).take_batch(20)["c"].tolist() == ["x", "y", "x", "z"] * 5


ARROW: dict[str, Any] = {
    "int8": pa.array([1, -2, 3, 4], pa.int8()),
    "uint64": pa.array([1, 2**64 - 1, 3, 4], pa.uint64()),
    "int with nulls": pa.array([1, None, 2**60 + 1, 4]),
    "float16": pa.array(np.array([1.5, 2, 3, 4], np.float16)),
    "float32": pa.array([1.5, None, 3, 4], pa.float32()),
    "bool": pa.array([True, False, True, True]),
    "bool with nulls": pa.array([True, None, False, True]),
    "string": pa.array(["a", None, "", "ü"]),
    "large string": pa.array(["a", None, "", "ü"], pa.large_string()),
    "binary": pa.array([b"a", None, b"\x00", b""]),
    "decimal": pa.array([Decimal("1.10"), None, Decimal("2.25"), Decimal("3.00")]),
    "date": pa.array([date(2020, 1, 1)] * 4),
    "date with nulls": pa.array([date(2020, 1, 1), None] * 2),
    "time": pa.array([time(1, 2, 3)] * 4, pa.time32("s")),
    "time of microseconds": pa.array([time(1, 2, 3, 4)] * 4),
    "timestamp of seconds": pa.array([datetime(2020, 1, 1)] * 4, pa.timestamp("s")),
    "timestamp with a zone": pa.array([datetime(2020, 1, 1)] * 4, pa.timestamp("us", "Europe/Zurich")),
    "duration": pa.array([timedelta(seconds=5)] * 4),
    "list": pa.array([[1, 2], [], None, [3]]),
    "list of one length": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]]),
    "list of strings": pa.array([["a"], ["b", "c"], [], ["d"]]),
    "list of lists": pa.array([[[1], [2, 3]], [[]], [], [[4]]]),
    "fixed list": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int32(), 2)),
    "fixed list with nulls": pa.array([[1, 2], None, [5, None], [7, 8]], pa.list_(pa.int32(), 2)),
    "struct": pa.array([{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None, {"a": 3, "b": None}]),
    "map": pa.array([[("k", 1)], [], None, [("l", 2)]], pa.map_(pa.string(), pa.int64())),
    "dictionary": pa.array(["x", "y", "x", None]).dictionary_encode(),
    "null": pa.nulls(4),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype=np.float32).reshape(4, 2, 3)),
}


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


def test_pairs_of_a_torch_dataset_stand_in_a_column() -> None:
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


# --- Parquet ---


def test_a_file_a_folder_a_pattern_and_a_list_are_read(tmp_path: Path) -> None:
    files = [write(tmp_path / "data" / f"{n}.parquet", x=[n, n + 0.5, n + 0.75]) for n in range(3)]
    everything = [n + part for n in range(3) for part in (0, 0.5, 0.75)]
    assert values(headway.data.read_parquet(files[1]), "x") == [1, 1.5, 1.75]
    assert values(headway.data.read_parquet(str(tmp_path / "data")), "x") == everything
    assert values(headway.data.read_parquet(tmp_path / "data" / "[12].parquet"), "x") == everything[3:]
    assert values(headway.data.read_parquet(f"{tmp_path}/**/*.parquet"), "x") == everything
    assert values(headway.data.read_parquet([files[2], str(files[0])]), "x") == everything[6:] + everything[:3]


def test_only_data_files_of_a_folder_are_read(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=[1])
    write(tmp_path / "deep" / "er" / "b.parquet", x=[2])
    write(tmp_path / "_temporary" / "c.parquet", x=[3])
    write(tmp_path / ".hidden.parquet", x=[4])
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "README.md").write_text("not data")
    assert values(headway.data.read_parquet(tmp_path), "x") == [1, 2]


def test_a_file_whose_name_looks_like_a_pattern_is_read(tmp_path: Path) -> None:
    assert values(headway.data.read_parquet(write(tmp_path / "a [1]*.parquet", x=[1])), "x") == [1]


def test_a_relative_path_stays_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.parquet", x=[1])
    monkeypatch.chdir(tmp_path)
    dataset = headway.data.read_parquet("a.parquet")
    monkeypatch.chdir("/")
    assert values(dataset, "x") == [1]


def test_a_filesystem_of_pyarrow_is_used(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet", x=[1, 2, 3])
    below = SubTreeFileSystem(str(tmp_path), LocalFileSystem())
    assert values(headway.data.read_parquet("in/a.parquet", filesystem=below), "x") == [1, 2, 3]
    assert values(headway.data.read_parquet("in", filesystem=below), "x") == [1, 2, 3]


def test_a_uri_of_this_machine_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=[1, 2, 3])
    assert values(headway.data.read_parquet(f"file://{tmp_path}/a.parquet"), "x") == [1, 2, 3]
    assert values(headway.data.read_parquet(f"file://{tmp_path}"), "x") == [1, 2, 3]


def test_row_groups_are_pieces_unless_another_number_is_asked_for(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", x=list(range(7)))
    assert headway.data.read_parquet(file).num_blocks() == 4
    assert headway.data.read_parquet(file, override_num_blocks=3).num_blocks() == 3
    assert values(headway.data.read_parquet(file, override_num_blocks=3), "x") == list(range(7))


def test_only_the_columns_that_are_asked_for_are_read_in_their_order(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", a=[1, 2, 3], b=["x", "y", "z"], c=[0.5, 1.5, 2.5])
    chosen = headway.data.read_parquet(file, columns=["c", "a"])
    assert chosen.columns() == ["c", "a"]
    assert chosen.take_all() == [{"c": 0.5, "a": 1}, {"c": 1.5, "a": 2}, {"c": 2.5, "a": 3}]
    assert headway.data.read_parquet(file).select_columns(["b"]).take_all() == [{"b": "x"}, {"b": "y"}, {"b": "z"}]


@pytest.mark.parametrize("condition", ["x >= 3 and s != 'e'", (pc.field("x") >= 3) & (pc.field("s") != "e")])
@pytest.mark.parametrize("blocks", [None, 1, 2, 9])
def test_a_filter_is_pushed_down(tmp_path: Path, condition: Any, blocks: int | None) -> None:
    write(tmp_path / "1.parquet", x=[1, 5, 2, 3], s=list("abcd"))
    write(tmp_path / "2.parquet", x=[4, 0, 9], s=list("efg"))
    found = headway.data.read_parquet(tmp_path, columns=["x"], filter=condition, override_num_blocks=blocks)
    assert found.columns() == ["x"]
    assert values(found, "x") == [5, 3, 9]


def test_a_filter_that_nothing_passes_leaves_nothing(tmp_path: Path) -> None:
    none = headway.data.read_parquet(write(tmp_path / "a.parquet", x=[1, 2, 3]), filter="x > 10")
    assert (none.count(), none.take_all(), none.columns()) == (0, [], ["x"])


def partitioned(folder: Path, **keys: Any) -> Path:
    rows = len(next(iter(keys.values())))
    pq.write_to_dataset(pa.table({"x": list(range(rows)), **keys}), folder, partition_cols=list(keys))
    return folder


def pairs(dataset: Dataset, *columns: str) -> list[Any]:
    return sorted(tuple(row[name] for name in columns) for row in dataset.take_all())


def test_folders_named_key_value_give_columns(tmp_path: Path) -> None:
    folder = partitioned(tmp_path / "p", year=[2020, 2021, 2020], kind=["a", "b", "b"])
    dataset = headway.data.read_parquet(folder)
    assert pairs(dataset, "x", "year", "kind") == [(0, 2020, "a"), (1, 2021, "b"), (2, 2020, "b")]
    assert sorted(dataset.columns()) == ["kind", "x", "year"]


def test_columns_from_folders_can_be_all_that_is_asked_for(tmp_path: Path) -> None:
    folder = partitioned(tmp_path / "p", year=[2020, 2021, 2020])
    assert pairs(headway.data.read_parquet(folder, columns=["year"]), "year") == [(2020,), (2020,), (2021,)]
    assert pairs(headway.data.read_parquet(folder, columns=["year", "x"]), "x", "year")[0] == (0, 2020)


def test_a_filter_may_speak_of_columns_from_folders(tmp_path: Path) -> None:
    folder = partitioned(tmp_path / "p", year=[2020, 2021, 2020])
    assert pairs(headway.data.read_parquet(folder, filter="year == 2020"), "x") == [(0,), (2,)]
    assert pairs(headway.data.read_parquet(folder, filter="year == 2020 and x > 0"), "x", "year") == [(2, 2020)]


def test_a_pattern_over_folders_gives_their_columns(tmp_path: Path) -> None:
    folder = partitioned(tmp_path / "p", year=[2020, 2021, 2020])
    dataset = headway.data.read_parquet(f"{folder}/year=*/*.parquet")
    assert pairs(dataset, "x", "year") == [(0, 2020), (1, 2021), (2, 2020)]


@pytest.mark.parametrize("key", [[-1, 0, 1], ["a b", "c/d", "50%"], ["1", "x", "2"]], ids=str)
def test_what_arrow_writes_as_folders_comes_back(tmp_path: Path, key: list[Any]) -> None:
    folder = partitioned(tmp_path / "p", key=key)
    assert pairs(headway.data.read_parquet(folder), "x", "key") == list(enumerate(key))


def test_files_with_their_columns_in_another_order_are_one_dataset(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", a=[1], b=["x"])
    write(tmp_path / "2.parquet", b=["y"], a=[2])
    assert headway.data.read_parquet(tmp_path).take_all() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.mark.parametrize("kind", sorted(set(ARROW) - {"tensor"}))
def test_a_parquet_file_of_any_type_is_read_as_arrow_reads_it(tmp_path: Path, kind: str) -> None:
    table = pa.table({"x": ARROW[kind]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    expected = pq.ParquetFile(tmp_path / "a.parquet").read()
    back = headway.data.read_parquet(tmp_path / "a.parquet").to_arrow()
    if kind != "fixed list":  # which becomes a tensor
        assert back.schema.field("x").type == expected.schema.field("x").type
    assert back.column("x").to_pylist() == expected.column("x").to_pylist()


def test_shuffled_files_have_the_same_rows(tmp_path: Path) -> None:
    for n in range(6):
        write(tmp_path / f"{n}.parquet", x=[10 * n, 10 * n + 1])
    dataset = headway.data.read_parquet(tmp_path, shuffle="files")
    first = values(dataset, "x")
    assert sorted(first) == sorted(10 * n + m for n in range(6) for m in (0, 1))
    assert first != sorted(first)


# --- CSV ---


CSV = {
    "plain": "a,b\n1,x\n2,y\n3,z\n",
    "no newline at the end": "a,b\n1,x\n2,y\n3,z",
    "CRLF": "a,b\r\n1,x\r\n2,y\r\n3,z\r\n",
    "CRLF, none at the end": "a,b\r\n1,x\r\n2,y\r\n3,z",
    "blank lines": "\n\na,b\n\n1,x\n\n\n2,y\n3,z\n\n",
    "blank lines, CRLF": "\r\na,b\r\n\r\n1,x\r\n2,y\r\n\r\n3,z\r\n\r\n",
    "quotes": '"a","b"\n1,"x"\n2,"y"\n"3",z\n',
    "a byte order mark": "\ufeffa,b\n1,x\n2,y\n3,z\n",
}


@pytest.mark.parametrize("piece", [3, 7, 1 << 20])
@pytest.mark.parametrize("how", CSV)
def test_a_csv_file_is_read_however_its_lines_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, piece: int
) -> None:
    monkeypatch.setattr(csv_json_text, "PIECE", piece)
    file = tmp_path / "a.csv"
    file.write_bytes(CSV[how].encode())
    dataset = headway.data.read_csv(file)
    assert dataset.take_all() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}]
    assert dataset.count() == 3


def test_a_csv_file_whose_lines_end_with_cr_only_is_read_or_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,b\r1,x\r2,y\r")
    try:
        rows = headway.data.read_csv(tmp_path).take_all()
    except DataError:
        return
    assert rows == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def test_many_pieces_of_a_csv_file_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_json_text, "PIECE", 1000)
    rows = [{"n": n, "s": "x" * (n % 50), "f": n / 2} for n in range(2000)]
    pd.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
    dataset = headway.data.read_csv(tmp_path / "a.csv")
    assert dataset.num_blocks() > 20
    assert dataset.take_all() == rows
    assert [str(kind) for kind in dataset.schema().types] == ["int64", "string", "double"]


def test_a_csv_source_is_freed_with_its_dataset(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    dataset = headway.data.read_csv(tmp_path)
    assert dataset.take_all() == [{"x": 1}, {"x": 2}]
    freed = weakref.ref(dataset.plan.source)
    del dataset
    gc.collect()
    assert freed() is None


@given(st.lists(st.text("ab ,\"'ü;\t", max_size=12), max_size=30), st.integers(1, 40), st.booleans())
def test_any_csv_file_in_pieces_of_any_size_has_its_rows(texts: list[str], piece: int, ends: bool) -> None:
    with pytest.MonkeyPatch.context() as patch, Folder() as folder:
        patch.setattr(csv_json_text, "PIECE", piece)
        out = io.StringIO()
        writer = stdlib_csv.writer(out, quoting=stdlib_csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(["n", "s"])
        writer.writerows((f"n{number}", text) for number, text in enumerate(texts))
        (folder / "a.csv").write_bytes(out.getvalue().encode() if ends else out.getvalue().rstrip("\n").encode())
        dataset = headway.data.read_csv(
            folder / "a.csv", convert_options=csv.ConvertOptions(column_types={"s": pa.string()})
        )
        assert dataset.count() == len(texts)
        assert dataset.take_all() == [{"n": f"n{number}", "s": text} for number, text in enumerate(texts)]


class Folder:
    """For hypothesis, whose examples would share the fixture's."""

    def __enter__(self) -> Path:
        import tempfile

        self._folder = tempfile.TemporaryDirectory()
        return Path(self._folder.name)

    def __exit__(self, *exc: object) -> None:
        self._folder.cleanup()


@pytest.mark.parametrize("name", ["a.csv.gz", "b.csv"])
def test_csv_files_may_be_compressed(tmp_path: Path, name: str) -> None:
    data = b"a,b\n1,x\n2,y\n"
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    (tmp_path / "c.csv").write_bytes(data)
    assert values(headway.data.read_csv(tmp_path), "a") == [1, 2, 1, 2]


def test_options_of_arrow_are_used(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b\n01;x\n02;y\n")
    dataset = headway.data.read_csv(
        tmp_path / "a.csv",
        parse_options=csv.ParseOptions(delimiter=";"),
        convert_options=csv.ConvertOptions(column_types={"a": pa.string()}),
    )
    assert dataset.take_all() == [{"a": "01", "b": "x"}, {"a": "02", "b": "y"}]


def test_a_csv_file_may_have_no_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,x\n2,y\n")
    named = headway.data.read_csv(tmp_path / "a.csv", read_options=csv.ReadOptions(column_names=["n", "s"]))
    assert named.take_all() == [{"n": 1, "s": "x"}, {"n": 2, "s": "y"}]
    assert named.count() == 2


def test_a_csv_file_with_a_header_only_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n")
    assert (headway.data.read_csv(tmp_path).count(), headway.data.read_csv(tmp_path).take_all()) == (0, [])


def test_a_column_of_a_csv_file_may_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,x\n2,y\n")
    assert headway.data.read_csv(tmp_path).select_columns("b").take_all() == [{"b": "x"}, {"b": "y"}]


# --- JSON lines ---


ROWS = [{"a": n, "b": "x" * n, "c": [n, n + 1], "d": {"e": n / 2}} for n in range(1, 6)]
JSON = "\n".join(map(json.dumps, ROWS))


@pytest.mark.parametrize("piece", [10, 60, 1 << 20])
@pytest.mark.parametrize(
    "text",
    [JSON + "\n", JSON, JSON.replace("\n", "\r\n"), "\n" + JSON.replace("\n", "\n\n") + "\n\n", JSON + "\n \t \n"],
    ids=["plain", "no newline at the end", "CRLF", "blank lines", "a line of spaces"],
)
def test_json_lines_are_read_however_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, piece: int
) -> None:
    monkeypatch.setattr(csv_json_text, "PIECE", piece)
    (tmp_path / "a.jsonl").write_bytes(text.encode())
    dataset = headway.data.read_json(tmp_path / "a.jsonl")
    assert dataset.take_all() == ROWS
    assert dataset.count() == 5


def test_json_lines_may_be_compressed_and_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(JSON.encode()))
    (tmp_path / "b.json").write_text(JSON)
    (tmp_path / "c.txt").write_text("no JSON")
    assert headway.data.read_json(tmp_path).take_all() == ROWS + ROWS


def test_a_key_that_later_lines_lack_is_null_in_pieces_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_json_text, "PIECE", 20)
    (tmp_path / "a.json").write_text('{"a": 1, "b": 2}\n{"a": 2}\n{"a": 3}\n')
    assert [row["b"] for row in headway.data.read_json(tmp_path).take_all()] == [2, None, None]


# --- text ---


@pytest.mark.parametrize("piece", [1, 4, 1 << 20])
@pytest.mark.parametrize(
    "text",
    [
        "one\ntwo\n  three \n",
        "one\ntwo\n  three ",
        "one\r\ntwo\r\n  three \r\n",
        "\n\none\n\n\ntwo\n  three \n\n",
        "one\ntwo\n  three \n\t\n",
        "one\ntwo\n  three \n   ",
        "one\n\u3000\ntwo\n\x1f\n  three \n",
    ],
    ids=["plain", "no newline", "CRLF", "blank lines", "a tab", "spaces at the end", "blanks of other kinds"],
)
def test_text_is_a_row_per_line_that_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, piece: int
) -> None:
    monkeypatch.setattr(csv_json_text, "PIECE", piece)
    (tmp_path / "a.txt").write_bytes(text.encode())
    dataset = headway.data.read_text(tmp_path / "a.txt")
    assert values(dataset, "text") == ["one", "two", "  three "]
    assert dataset.count() == 3


def test_text_may_be_compressed_and_lines_may_hold_any_other_break(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("é\x0bx\ny\u2028z\n".encode()))
    assert values(headway.data.read_text(tmp_path / "a.txt.gz"), "text") == ["é\x0bx", "y\u2028z"]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8"])
def test_text_may_be_in_another_encoding(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_bytes("zwölf\nBoxkämpfer\n\näöü".encode(encoding))
    assert values(headway.data.read_text(tmp_path, encoding=encoding), "text") == ["zwölf", "Boxkämpfer", "äöü"]


@given(st.lists(st.text("ab ü\t", max_size=8), max_size=20), st.integers(1, 30), st.sampled_from(["\n", "\r\n"]))
def test_any_text_in_pieces_of_any_size_has_its_lines(texts: list[str], piece: int, end: str) -> None:
    with pytest.MonkeyPatch.context() as patch, Folder() as folder:
        patch.setattr(csv_json_text, "PIECE", piece)
        (folder / "a.txt").write_bytes(end.join(texts).encode())
        expected = [text for text in texts if text.strip()]
        assert values(headway.data.read_text(folder / "a.txt"), "text") == expected


# --- whole files ---


def test_a_file_is_a_row_of_bytes(tmp_path: Path) -> None:
    contents = [b"", b"\x00\xff", b"abc" * 1000]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.bin").write_bytes(content)
    assert values(headway.data.read_binary_files(tmp_path), "bytes") == contents
    named = headway.data.read_binary_files(tmp_path, include_paths=True).take_all()
    assert [Path(row["path"]).name for row in named] == ["0.bin", "1.bin", "2.bin"]


def test_many_files_are_several_pieces(tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / f"{number:03d}").write_bytes(str(number).encode())
    dataset = headway.data.read_binary_files(tmp_path)
    assert dataset.num_blocks() > 1
    assert values(dataset, "bytes") == [str(number).encode() for number in range(150)]


@pytest.mark.parametrize("dtype", ["<i4", "u1", "<f2", "<f8", "?", ">i4", ">f8"])
@pytest.mark.parametrize("shape", [(10,), (10, 2, 3)])
def test_an_npy_file_is_read_as_numpy_reads_it(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape)) % 5).reshape(shape).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    batch = headway.data.read_numpy(tmp_path / "a.npy").take_batch()
    assert np.array_equal(batch["data"], array)
    assert batch["data"].dtype == array.dtype.newbyteorder("=")


def test_a_large_npy_file_is_read_in_slabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_files, "BYTES", 1000)
    array = np.arange(3000, dtype=np.float32).reshape(500, 3, 2)
    np.save(tmp_path / "a.npy", array)
    np.save(tmp_path / "b.npy", array[:7] + 0.5)
    dataset = headway.data.read_numpy(tmp_path)
    assert dataset.num_blocks() > 10
    assert dataset.count() == 507
    back = np.concatenate([batch["data"] for batch in dataset.iter_batches(batch_size=64)])
    assert np.array_equal(back, np.concatenate([array, array[:7] + 0.5]))


def test_an_npy_file_without_rows_has_none(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((0, 3)))
    np.save(tmp_path / "b.npy", np.ones((2, 3)))
    assert [row["data"].tolist() for row in headway.data.read_numpy(tmp_path).take_all()] == [[1, 1, 1]] * 2


def test_npy_files_of_different_shapes_are_one_dataset(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    np.save(tmp_path / "b.npy", np.ones((2, 4)))
    (batch,) = headway.data.read_numpy(tmp_path).iter_batches()
    assert [array.shape for array in batch["data"]] == [(3,), (3,), (4,), (4,)]


def picture(path: Path, height: int, width: int, mode: str = "RGB") -> np.ndarray[Any, Any]:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    array = (np.arange(np.prod(shape)) * 7 % 256).reshape(shape).astype(np.uint8)
    image.fromarray(array).save(path)
    return array


def test_images_of_one_size_are_one_array(tmp_path: Path) -> None:
    arrays = [picture(tmp_path / f"{n}.png", 4, 5) for n in range(3)]
    (tmp_path / "labels.csv").write_text("not,an,image\n")
    batch = headway.data.read_images(tmp_path).take_batch()
    assert batch["image"].dtype == np.uint8
    assert np.array_equal(batch["image"], np.stack(arrays))


@pytest.mark.parametrize("files", [2, 64], ids=["many pieces", "one piece"])
def test_images_of_different_sizes_are_an_array_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    monkeypatch.setattr(whole_files, "FILES", files)
    arrays = [picture(tmp_path / f"{n}.png", 4 + n // 3, 5) for n in range(8)]
    dataset = headway.data.read_images(tmp_path, include_paths=True)
    (batch,) = dataset.iter_batches()
    assert all(np.array_equal(a, b) for a, b in zip(batch["image"], arrays, strict=True))
    for row, array in zip(dataset.take_all(), arrays, strict=True):
        assert np.array_equal(row["image"], array)
    assert [os.path.basename(path) for path in batch["path"]] == [f"{n}.png" for n in range(8)]


def test_images_are_made_to_be_of_one_size_and_mode(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 4, 5)
    picture(tmp_path / "b.png", 6, 7, "L")
    dataset = headway.data.read_images(tmp_path, size=(8, 9), mode="RGB")
    assert dataset.take_batch()["image"].shape == (2, 8, 9, 3)
    assert headway.data.read_images(tmp_path, mode="L", size=(2, 3)).take_batch()["image"].shape == (2, 2, 3)


def test_grey_and_coloured_images_meet(tmp_path: Path) -> None:
    shapes = [picture(tmp_path / "a.png", 4, 5).shape, picture(tmp_path / "b.png", 4, 5, "L").shape]
    assert [row["image"].shape for row in headway.data.read_images(tmp_path).take_all()] == shapes


# --- tar files of samples ---


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def npy(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def test_files_of_one_key_are_a_row(tmp_path: Path) -> None:
    members = {}
    for n in range(100):
        members |= {f"s/{n:03d}.cls": b"%d" % n, f"s/{n:03d}.txt": f"text {n}".encode()}
        members |= {f"s/{n:03d}.x.npy": npy(np.full(3, n)), f"s/{n:03d}.json": json.dumps({"n": n}).encode()}
    dataset = headway.data.read_webdataset(tar(tmp_path / "a.tar", members))
    rows = dataset.take_all()
    assert dataset.count() == 100
    assert dataset.num_blocks() > 1
    assert [row["cls"] for row in rows] == list(range(100))
    assert [row["txt"] for row in rows] == [f"text {n}" for n in range(100)]
    assert [row["x.npy"].tolist() for row in rows] == [[n] * 3 for n in range(100)]
    assert [row["json"] for row in rows] == [{"n": n} for n in range(100)]
    assert rows[7]["__key__"] == "s/007"


def test_samples_of_several_tar_files_stay_apart(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", {"1.cls": b"1", "2.cls": b"2"})
    tar(tmp_path / "b.tar", {"1.cls": b"3"})
    assert values(headway.data.read_webdataset(tmp_path), "cls") == [1, 2, 3]


def test_samples_are_bytes_without_a_decoder_and_what_a_decoder_makes_of_them(tmp_path: Path) -> None:
    file = tar(tmp_path / "a.tar", {"1.cls": b"1", "1.jpg": b"\xff\x00"})
    raw = headway.data.read_webdataset(file, decoder=None).take_all()
    assert raw == [{"__key__": "1", "cls": b"1", "jpg": b"\xff\x00"}]
    own = headway.data.read_webdataset(file, decoder=lambda column, data: f"{column}{len(data)}").take_all()
    assert own == [{"__key__": "1", "cls": "cls1", "jpg": "jpg2"}]


def test_an_image_in_a_tar_file_is_an_array(tmp_path: Path) -> None:
    array = picture(tmp_path / "a.png", 4, 5)
    file = tar(tmp_path / "a.tar", {"1.png": (tmp_path / "a.png").read_bytes(), "1.cls": b"1"})
    (row,) = headway.data.read_webdataset(file).take_all()
    assert np.array_equal(row["png"], array)


# --- all of them ---


def test_a_dataset_travels_to_another_process(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", x=list(range(7)))
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    (tmp_path / "a.json").write_text('{"x": 1}\n{"x": 2}\n')
    np.save(tmp_path / "a.npy", np.arange(3))
    for dataset in (
        headway.data.range(5),
        headway.data.from_items([{"x": np.zeros(n)} for n in range(3)]).select_columns("x"),
        headway.data.read_parquet(file, filter="x > 3"),
        headway.data.read_csv(tmp_path / "a.csv", parse_options=csv.ParseOptions(delimiter=";")),
        headway.data.read_json(tmp_path / "a.json"),
        headway.data.read_numpy(tmp_path / "a.npy").random_shuffle(seed=1),
        headway.data.range(9).train_test_split(3, shuffle=True)[0].limit(4),
    ):
        dataset.take_all()  # what it has found out travels too
        assert repr(pickle.loads(pickle.dumps(dataset)).take_all()) == repr(dataset.take_all())


@pytest.mark.parametrize("blocks", [0, -1])
def test_a_number_of_blocks_that_cannot_be_is_refused(tmp_path: Path, blocks: int) -> None:
    (tmp_path / "a.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match="block"):
        headway.data.range(5, override_num_blocks=blocks)
    with pytest.raises(DataError, match="block"):
        headway.data.from_items([1, 2], override_num_blocks=blocks)
    with pytest.raises(DataError, match="block"):
        headway.data.read_text(tmp_path, override_num_blocks=blocks)


def test_a_dataset_is_written_to_an_object_store_and_read_from_it(s3: S3) -> None:
    rows = headway.data.range(1000).add_column("text", lambda frame: frame["id"].astype(str))
    rows.write_parquet(f"{s3.url}/some/rows", row_group_rows=100)
    assert s3.keys("some/rows/") == ["some/rows/part-000000.parquet"]
    back = headway.data.read_parquet(f"{s3.url}/some/rows")
    assert (back.count(), back.num_blocks()) == (1000, 10)
    assert back.take_all() == [{"id": n, "text": str(n)} for n in range(1000)]
    for path in ("rows/part-000000.parquet", "rows/*.parquet", "rows/"):
        assert headway.data.read_parquet(f"{s3.url}/some/{path}", columns=["id"]).sum("id") == sum(range(1000))
    listed = [f"{s3.url}/some/rows/part-000000.parquet"] * 2
    assert headway.data.read_parquet(listed).count() == 2000


def test_a_shorter_dataset_takes_the_place_of_a_longer_one_in_an_object_store(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.data.operations.write.FILE_BYTES", 1)
    headway.data.range(5000).write_parquet(f"{s3.url}/some/rows")
    assert len(s3.keys("some/rows/")) > 1
    headway.data.range(3).write_parquet(f"{s3.url}/some/rows")
    assert s3.keys("some/rows/") == ["some/rows/part-000000.parquet"]


def test_lines_and_folders_named_key_value_are_read_from_an_object_store(s3: S3, tmp_path: Path) -> None:
    s3.put("lines/a.csv", b"a,b\n1,x\n2,y\n")
    s3.put("lines/b.csv", b"a,b\n3,z")
    assert values(headway.data.read_csv(f"{s3.url}/lines"), "a") == [1, 2, 3]
    for n in (1, 2):
        s3.put(f"hive/n={n}/x.parquet", write(tmp_path / "x.parquet", x=[n, n]).read_bytes())
    assert pairs(headway.data.read_parquet(f"{s3.url}/hive"), "x", "n") == [(1, 1), (1, 1), (2, 2), (2, 2)]


def test_what_is_not_in_an_object_store_is_missed_at_once(s3: S3) -> None:
    with pytest.raises(DataError, match="nowhere"):
        headway.data.read_parquet(f"{s3.url}/nowhere")


def test_a_dataset_of_hugging_face_is_one_of_ours() -> None:
    from datasets import Dataset as HuggingFace

    theirs = HuggingFace.from_dict({"text": ["a", "b", "c"], "label": [0, 1, 0]})
    assert headway.data.from_huggingface(theirs).take_all() == theirs.to_list()
    chosen = theirs.select([2, 0])
    assert headway.data.from_huggingface(chosen).take_all() == chosen.to_list()


def test_files_whose_names_are_not_utf8_are_read(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    write(tmp_path / "a.parquet", x=[1, 2, 3]).rename(folder / "a.parquet")
    (folder / "a.csv").write_text("x\n1\n2\n")
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b'{"x": 1}\n'))
    (folder / "a.bin").write_bytes(b"12")
    assert values(headway.data.read_parquet(folder / "a.parquet"), "x") == [1, 2, 3]
    assert values(headway.data.read_csv(folder / "a.csv"), "x") == [1, 2]
    assert values(headway.data.read_json(folder / "a.jsonl.gz"), "x") == [1]
    assert values(headway.data.read_binary_files(folder / "a.bin"), "bytes") == [b"12"]
    with pytest.raises(DataError, match=r"the name of .*caf.udce9/a.bin' is not UTF-8.*rename it"):
        headway.data.read_binary_files(folder / "a.bin", include_paths=True).take_all()


def test_text_that_is_not_unicode_is_kept() -> None:
    rows = [{"name": os.fsdecode(b"caf\xe9")}, {"name": "plain"}]
    assert headway.data.from_items(rows).take_all() == rows
