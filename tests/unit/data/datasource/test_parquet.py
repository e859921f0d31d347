"""Parquet files: row groups, columns, filters, damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headway.data
from data_examples import ARROW, damaged, pairs, values, values_of, write, write_groups
from headway.data import DataContext, DataError


def test_row_groups_are_pieces_unless_another_number_is_requested(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", x=list(range(7)))
    assert headway.data.read_parquet(file).num_blocks() == 4
    assert headway.data.read_parquet(file, override_num_blocks=3).num_blocks() == 3
    assert values(headway.data.read_parquet(file, override_num_blocks=3), "x") == list(range(7))


def test_only_the_requested_columns_are_read_in_their_order(tmp_path: Path) -> None:
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


def test_directories_named_key_value_give_columns(tmp_path: Path) -> None:
    folder = partitioned(tmp_path / "p", year=[2020, 2021, 2020], kind=["a", "b", "b"])
    dataset = headway.data.read_parquet(folder)
    assert pairs(dataset, "x", "year", "kind") == [(0, 2020, "a"), (1, 2021, "b"), (2, 2020, "b")]
    assert sorted(dataset.columns()) == ["kind", "x", "year"]


def test_columns_from_directories_can_be_the_only_requested_ones(tmp_path: Path) -> None:
    folder = partitioned(tmp_path / "p", year=[2020, 2021, 2020])
    assert pairs(headway.data.read_parquet(folder, columns=["year"]), "year") == [(2020,), (2020,), (2021,)]
    assert pairs(headway.data.read_parquet(folder, columns=["year", "x"]), "x", "year")[0] == (0, 2020)


def test_a_filter_may_speak_of_columns_from_directories(tmp_path: Path) -> None:
    folder = partitioned(tmp_path / "p", year=[2020, 2021, 2020])
    assert pairs(headway.data.read_parquet(folder, filter="year == 2020"), "x") == [(0,), (2,)]
    assert pairs(headway.data.read_parquet(folder, filter="year == 2020 and x > 0"), "x", "year") == [(2, 2020)]


def test_a_pattern_over_directories_gives_their_columns(tmp_path: Path) -> None:
    folder = partitioned(tmp_path / "p", year=[2020, 2021, 2020])
    dataset = headway.data.read_parquet(f"{folder}/year=*/*.parquet")
    assert pairs(dataset, "x", "year") == [(0, 2020), (1, 2021), (2, 2020)]


@pytest.mark.parametrize("key", [[-1, 0, 1], ["a b", "c/d", "50%"], ["1", "x", "2"]], ids=str)
def test_what_arrow_writes_as_directories_comes_back(tmp_path: Path, key: list[Any]) -> None:
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


def test_a_file_that_is_no_parquet_file_is_named(tmp_path: Path) -> None:
    write_groups(tmp_path / "a.parquet", x=[1])
    (tmp_path / "b.parquet").write_bytes(b"certainly not" * 10)
    with pytest.raises(DataError, match=r"b\.parquet is not a readable Parquet file"):
        headway.data.read_parquet(tmp_path).count()
    left = headway.data.read_parquet(tmp_path, on_error="skip")
    assert (values_of(left), left.count()) == ([1], 1)


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    file = write_groups(tmp_path / "a.parquet", x=list(range(100)))
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(DataError, match=r"a\.parquet is not a readable Parquet file"):
        headway.data.read_parquet(file).take_all()
    with pytest.raises(DataError, match="none of the files could be read"):
        headway.data.read_parquet(file, on_error="skip").take_all()


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    with pytest.raises(DataError, match=r"a\.parquet is not a readable Parquet file"):
        headway.data.read_parquet(tmp_path).count()


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_corrupt_row_group_is_named(tmp_path: Path, shuffled: bool) -> None:
    file = damaged(write_groups(tmp_path / "a.parquet", 3, x=list(range(30))), 1)
    dataset = headway.data.read_parquet(file)
    dataset = dataset.random_shuffle() if shuffled else dataset
    with pytest.raises(DataError, match=r"a\.parquet, row group 1 cannot be read"):
        dataset.take_all()


def test_a_corrupt_row_group_is_left_out_when_asked(tmp_path: Path) -> None:
    damaged(write_groups(tmp_path / "a.parquet", 3, x=list(range(30))), 1)
    write_groups(tmp_path / "b.parquet", x=[100, 101])
    left = headway.data.read_parquet(tmp_path, on_error="skip")
    expected = [*range(10), *range(20, 30), 100, 101]
    assert values_of(left) == expected
    assert left.count() == len(expected)
    assert sorted(values_of(left.random_shuffle())) == expected
    assert values_of(left.map(lambda row: {"x": -row["x"]})) == [-x for x in expected]
    batches = left.iter_batches(batch_size=4)
    assert [len(batch["x"]) for batch in batches] == [4] * 5 + [2]


@pytest.mark.parametrize("num_threads", [1, 8])
def test_healthy_row_groups_before_a_corrupt_one_are_still_given(
    tmp_path: Path, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DataContext.get_current(), "num_threads", num_threads)
    file = damaged(write_groups(tmp_path / "a.parquet", 3, x=list(range(30))), 2)
    assert headway.data.read_parquet(file).take(5) == [{"x": x} for x in range(5)]


def test_a_column_that_one_file_lacks_is_named_with_both_files(tmp_path: Path) -> None:
    write_groups(tmp_path / "a.parquet", x=[1], y=[1])
    write_groups(tmp_path / "b.parquet", x=[2])
    with pytest.raises(DataError, match=r"(?s)b\.parquet.*a\.parquet.*differ in y.*columns="):
        headway.data.read_parquet(tmp_path).count()
    assert values_of(headway.data.read_parquet(tmp_path, columns=["x"])) == [1, 2]


def test_types_that_do_not_fit_are_named_with_both_files(tmp_path: Path) -> None:
    write_groups(tmp_path / "a.parquet", x=[1])
    write_groups(tmp_path / "b.parquet", x=["two"])
    with pytest.raises(DataError, match=r"(?s)b\.parquet has different column types than .*a\.parquet.*x"):
        headway.data.read_parquet(tmp_path).count()


@pytest.mark.parametrize(
    ("first", "second", "wide"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int32(), pa.int64()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.null(), pa.int64(), pa.int64()),
    ],
    ids=str,
)
def test_numbers_are_widened(tmp_path: Path, first: Any, second: Any, wide: Any) -> None:
    write_groups(tmp_path / "a.parquet", x=pa.array([None, None] if first == pa.null() else [1, 2], first))
    write_groups(tmp_path / "b.parquet", x=pa.array([3, 4], second))
    dataset = headway.data.read_parquet(tmp_path)
    assert dataset.schema().field("x").type == wide
    assert values_of(dataset) == ([None, None, 3, 4] if first == pa.null() else [1, 2, 3, 4])
    assert sorted(map(str, values_of(dataset.random_shuffle()))) == sorted(map(str, values_of(dataset)))


def test_a_parquet_file_without_rows_is_no_trouble(tmp_path: Path) -> None:
    write_groups(tmp_path / "a.parquet", x=pa.array([], pa.int64()))
    write_groups(tmp_path / "b.parquet", x=[1])
    assert values_of(headway.data.read_parquet(tmp_path)) == [1]
    empty = headway.data.read_parquet(tmp_path / "a.parquet")
    assert (empty.count(), empty.take_all(), empty.columns()) == (0, [], ["x"])


def test_a_column_that_no_file_has_is_refused(tmp_path: Path) -> None:
    write_groups(tmp_path / "a.parquet", x=[1], y=[2])
    with pytest.raises(DataError, match=r"no column 'nope' in .*a\.parquet; its columns are x, y"):
        headway.data.read_parquet(tmp_path, columns=["x", "nope"]).count()
    with pytest.raises(DataError, match=r"no column 'nope'.*x, y"):
        headway.data.read_parquet(tmp_path).select_columns("nope")


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_filter_on_a_missing_column_is_not_damage(tmp_path: Path, on_error: str) -> None:
    with pytest.raises(DataError, match="nope"):
        headway.data.read_parquet(
            write_groups(tmp_path / "a.parquet", x=[1]), filter="nope > 1", on_error=on_error
        ).take_all()
