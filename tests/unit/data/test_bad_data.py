"""Bad data and bad questions: each gets an error that says what is wrong, where, and what would help."""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
import threading
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow import csv

import headway.data
from headway.data import DataContext, DataError, Dataset
from headway.data.datasource import csv_json_text

NOISE = b"\xff" * 24


def write(path: Path, groups: int = 1, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    pq.write_table(table, path, row_group_size=max(1, table.num_rows // groups))
    return path


def damaged(path: Path, group: int) -> Path:
    """With noise where the first page of a row group begins."""
    chunk = pq.read_metadata(path).row_group(group).column(0)
    at = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    data[at : at + len(NOISE)] = NOISE
    path.write_bytes(data)
    return path


def values(dataset: Dataset, column: str = "x") -> list[Any]:
    return [row[column] for row in dataset.take_all()]


def error_of(dataset: Dataset) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one it is, is looked at
        dataset.take_all()
    return caught.value


def probed(dataset: Dataset, error: BaseException) -> BaseException:
    """The error of the call that the note recommends."""
    notes = "\n".join(error.__notes__)
    found = re.search(r"dataset\.probe\((\d+)\)", notes)
    assert found, notes
    with pytest.raises(type(error)) as again:
        dataset.probe(int(found[1]))
    return again.value


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda size: monkeypatch.setattr(DataContext.get_current(), "memory_budget_bytes", size)


# --- files ---


def test_a_file_that_is_no_parquet_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=[1])
    (tmp_path / "b.parquet").write_bytes(b"certainly not" * 10)
    with pytest.raises(DataError, match=r"b\.parquet is not a Parquet file"):
        headway.data.read_parquet(tmp_path).count()
    left = headway.data.read_parquet(tmp_path, on_error="skip")
    assert (values(left), left.count()) == ([1], 1)


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", x=list(range(100)))
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(DataError, match=r"a\.parquet is not a Parquet file"):
        headway.data.read_parquet(file).take_all()
    with pytest.raises(DataError, match="none of the files could be read"):
        headway.data.read_parquet(file, on_error="skip").take_all()


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    with pytest.raises(DataError, match=r"a\.parquet is not a Parquet file"):
        headway.data.read_parquet(tmp_path).count()


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_corrupt_row_group_is_named(tmp_path: Path, shuffled: bool) -> None:
    file = damaged(write(tmp_path / "a.parquet", 3, x=list(range(30))), 1)
    dataset = headway.data.read_parquet(file)
    dataset = dataset.random_shuffle() if shuffled else dataset
    with pytest.raises(DataError, match=r"a\.parquet, row group 1 cannot be read"):
        dataset.take_all()


def test_a_corrupt_row_group_is_left_out_when_asked(tmp_path: Path) -> None:
    damaged(write(tmp_path / "a.parquet", 3, x=list(range(30))), 1)
    write(tmp_path / "b.parquet", x=[100, 101])
    left = headway.data.read_parquet(tmp_path, on_error="skip")
    expected = [*range(10), *range(20, 30), 100, 101]
    assert values(left) == expected
    assert left.count() == len(expected)
    assert sorted(values(left.random_shuffle())) == expected
    assert values(left.map(lambda row: {"x": -row["x"]})) == [-x for x in expected]
    batches = left.iter_batches(batch_size=4)
    assert [len(batch["x"]) for batch in batches] == [4] * 5 + [2]


@pytest.mark.parametrize("num_threads", [1, 8])
def test_healthy_row_groups_before_a_corrupt_one_are_still_given(
    tmp_path: Path, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DataContext.get_current(), "num_threads", num_threads)
    file = damaged(write(tmp_path / "a.parquet", 3, x=list(range(30))), 2)
    assert headway.data.read_parquet(file).take(5) == [{"x": x} for x in range(5)]


def test_a_column_that_one_file_lacks_is_named_with_both_files(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=[1], y=[1])
    write(tmp_path / "b.parquet", x=[2])
    with pytest.raises(DataError, match=r"(?s)b\.parquet.*a\.parquet.*differ in y.*columns="):
        headway.data.read_parquet(tmp_path).count()
    assert values(headway.data.read_parquet(tmp_path, columns=["x"])) == [1, 2]


def test_types_that_do_not_fit_are_named_with_both_files(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=[1])
    write(tmp_path / "b.parquet", x=["two"])
    with pytest.raises(DataError, match=r"(?s)b\.parquet has other types than .*a\.parquet.*x"):
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
    write(tmp_path / "a.parquet", x=pa.array([None, None] if first == pa.null() else [1, 2], first))
    write(tmp_path / "b.parquet", x=pa.array([3, 4], second))
    dataset = headway.data.read_parquet(tmp_path)
    assert dataset.schema().field("x").type == wide
    assert values(dataset) == ([None, None, 3, 4] if first == pa.null() else [1, 2, 3, 4])
    assert sorted(map(str, values(dataset.random_shuffle()))) == sorted(map(str, values(dataset)))


def test_a_parquet_file_without_rows_is_no_trouble(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=pa.array([], pa.int64()))
    write(tmp_path / "b.parquet", x=[1])
    assert values(headway.data.read_parquet(tmp_path)) == [1]
    empty = headway.data.read_parquet(tmp_path / "a.parquet")
    assert (empty.count(), empty.take_all(), empty.columns()) == (0, [], ["x"])


@pytest.mark.parametrize("read", [headway.data.read_csv, headway.data.read_text, headway.data.read_json])
def test_an_empty_file_of_lines_has_no_rows(tmp_path: Path, read: Any) -> None:
    (tmp_path / "a.json").touch()
    assert (read(tmp_path).count(), read(tmp_path).take_all()) == (0, [])


@pytest.mark.parametrize("path", ["missing", "missing/*.parquet", "none"])
def test_files_that_are_not_there_are_missed_at_once(tmp_path: Path, path: str) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=re.escape(path)):
        headway.data.read_parquet(tmp_path / path)
    with pytest.raises(DataError, match="no paths"):
        headway.data.read_parquet([])


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json", "txt", "npy", "tar", "bin"])
def test_a_file_that_is_deleted_between_two_epochs_is_named(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.{suffix}"
    match suffix:
        case "parquet":
            dataset = headway.data.read_parquet(write(file, x=[1, 2]))
        case "npy":
            np.save(file, np.arange(3))
            dataset = headway.data.read_numpy(file)
        case "tar":
            dataset = headway.data.read_webdataset(tar(file, {"1.cls": b"1"}))
        case _:
            file.write_text('{"x": 1}\n{"x": 2}\n')
            read = {"csv": "read_csv", "json": "read_json", "txt": "read_text", "bin": "read_binary_files"}[suffix]
            dataset = getattr(headway.data, read)(file)
    batches = dataset.iter_batches()
    assert len(list(batches)) == 1
    file.unlink()
    with pytest.raises(DataError, match=rf"a\.{suffix}.* is gone"):
        list(batches)


def test_a_file_that_has_fewer_rows_than_before_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", 2, x=list(range(10)))
    batches = headway.data.read_parquet(file).iter_batches()
    assert len(list(batches)) == 1
    write(file, 1, x=[1, 2, 3])
    with pytest.raises(DataError, match=r"a\.parquet, row group \d"):
        list(batches)


def test_a_csv_row_of_the_wrong_width_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3\n")
    with pytest.raises(DataError, match=r"(?s)a\.csv.*cannot be read.*2 columns"):
        headway.data.read_csv(tmp_path).take_all()
    with pytest.raises(DataError, match=r"(?s)a\.csv.*cannot be read"):
        headway.data.read_csv(tmp_path).map(lambda row: row).take_all()
    with pytest.raises(DataError, match=r"(?s)a\.csv.*cannot be read"):
        headway.data.read_csv(tmp_path).schema()


@pytest.mark.parametrize("bad", ["a.csv", "z.csv"])
def test_a_bad_csv_file_is_left_out_when_asked(tmp_path: Path, bad: str) -> None:
    (tmp_path / bad).write_text("x,y\n1,2\n3\n")
    (tmp_path / "m.csv").write_text("x,y\n5,6\n")
    left = headway.data.read_csv(tmp_path, on_error="skip")
    assert left.take_all() == [{"x": 5, "y": 6}]
    assert left.count() == 1


def test_a_quoted_line_break_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x,s\n1,"two\nlines"\n2,one\n')
    with pytest.raises(DataError, match=r"(?s)a\.csv.*newlines_in_values=True"):
        headway.data.read_csv(tmp_path).take_all()
    dataset = headway.data.read_csv(tmp_path, parse_options=csv.ParseOptions(newlines_in_values=True))
    assert dataset.take_all() == [{"x": 1, "s": "two\nlines"}, {"x": 2, "s": "one"}]
    assert dataset.count() == 2


@pytest.mark.parametrize("piece", range(4, 24, 3))
def test_a_quoted_line_break_is_refused_wherever_a_file_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Also where every line break in quotes is the end of a piece."""
    monkeypatch.setattr(csv_json_text, "PIECE", piece)
    (tmp_path / "a.csv").write_text('s\n"two\nlines"\n"one"\n"three\n\nlines"\nend\n')
    with pytest.raises(DataError, match=r"a\.csv"):
        headway.data.read_csv(tmp_path).take_all()


def test_values_that_do_not_fit_the_first_rows_are_named_and_types_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_json_text, "PIECE", 8)
    (tmp_path / "a.csv").write_text("x\n1\n2\n3\n4\n5.5\n6\n")
    with pytest.raises(DataError, match=r"a\.csv, lines \d to \d cannot be read: its columns have other types"):
        headway.data.read_csv(tmp_path).take_all()
    chosen = csv.ConvertOptions(column_types={"x": pa.float64()})
    assert values(headway.data.read_csv(tmp_path, convert_options=chosen)) == [1, 2, 3, 4, 5.5, 6]


def test_csv_files_of_different_columns_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,z\n1,2\n")
    with pytest.raises(DataError, match=r"b\.csv.*differ in y, z"):
        headway.data.read_csv(tmp_path).take_all()


@pytest.mark.parametrize("text", ['[{"x": 1},\n {"x": 2}]', '{"x": 1}\n{"x": \n', "hello\n"])
def test_json_that_is_not_in_lines_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=r"a\.json.* cannot be read"):
        headway.data.read_json(tmp_path).take_all()


def test_text_in_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("zwölf".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.txt"):
        headway.data.read_text(tmp_path).take_all()


@pytest.mark.parametrize(
    ("shape", "kind", "wrong"),
    [
        ("(1000000000000000000,)", "<f8", "ends before its rows do"),  # a list of its pieces would fill the memory
        ("(99999999999999999999999, 2)", "<f8", "ends before its rows do"),
        ("(10, 4611686018427387904, 8)", "<f8", "ends before its rows do"),  # too large for 64 bits
        ("(-5, 2)", "<f8", "ends before its rows do"),
        ("(2, -5)", "<f8", "rows with something in them"),
        ("(1000000000000000000, 0)", "<f8", "rows with something in them"),
        ("(3,)", "|V0", "rows with something in them"),
    ],
)
def test_an_npy_file_with_an_impossible_shape_is_named(tmp_path: Path, shape: str, kind: str, wrong: str) -> None:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(80))
    with pytest.raises(DataError, match=rf"a\.npy.*{wrong}"):
        headway.data.read_numpy(tmp_path).count()


def test_an_npy_file_that_is_none_or_is_cut_off_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(100))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-8])
    with pytest.raises(DataError, match=r"a\.npy.*ends before its rows do"):
        headway.data.read_numpy(tmp_path).take_all()
    (tmp_path / "a.npy").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=r"a\.npy is not a \.npy file"):
        headway.data.read_numpy(tmp_path).take_all()
    (tmp_path / "a.npy").touch()
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"a\.npy must hold rows of plain numbers"):
        headway.data.read_numpy(tmp_path).take_all()


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def test_a_bad_sample_of_a_tar_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.tar: 1\.cls cannot be read"):
        headway.data.read_webdataset(tar(tmp_path / "a.tar", {"1.cls": b"one"})).take_all()
    (tmp_path / "b.tar").write_bytes(b"no tar file" * 100)
    with pytest.raises(DataError, match=r"b\.tar is not a tar file"):
        headway.data.read_webdataset(tmp_path / "b.tar").take_all()


def test_a_sample_that_lacks_a_column_is_named(tmp_path: Path) -> None:
    file = tar(tmp_path / "a.tar", {"1.cls": b"1", "1.txt": b"x", "2.cls": b"2"})
    with pytest.raises(DataError, match=r"(?s)(a\.tar.*txt|txt.*a\.tar)"):
        headway.data.read_webdataset(file).take_all()


def test_an_image_that_is_none_is_named_or_left_out(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"b\.png is not an image"):
        headway.data.read_images(tmp_path).take_all()
    left = headway.data.read_images(tmp_path, on_error="skip")
    assert [row["image"].shape for row in left.take_all()] == [(2, 2, 3)]
    assert left.count() == 1


# --- functions ---


@pytest.mark.parametrize("value", [None, 5, "text", [1, 2]])
def test_map_must_return_a_dict(value: Any) -> None:
    with pytest.raises(DataError, match=rf"must return a dict.*{type(value).__name__}.*row 3"):
        headway.data.range(5).map(lambda row: value if row["id"] == 3 else row).take_all()


def test_map_must_return_the_same_columns_for_every_row() -> None:
    dataset = headway.data.range(5).map(lambda row: {"id": 1} if row["id"] < 3 else {"id": 1, "more": 2})
    with pytest.raises(DataError, match="differ in more"):
        dataset.take_all()


def test_map_must_return_the_same_columns_in_every_chunk() -> None:
    dataset = headway.data.range(5000).map(lambda row: {"a": 1} if row["id"] < 2048 else {"b": 1})
    for consume in (dataset.to_pandas, dataset.to_arrow, dataset.materialize):
        with pytest.raises(DataError, match="columns"):
            consume()


@pytest.mark.parametrize("value", [None, 5, "text", [1, 2]])
def test_map_batches_must_return_a_batch(value: Any) -> None:
    with pytest.raises(DataError, match=rf"must return a dict of arrays.*not a {type(value).__name__}"):
        headway.data.range(5).map_batches(lambda batch: value).take_all()


def test_columns_of_a_batch_must_have_one_length() -> None:
    with pytest.raises(DataError, match=r"one length: a has 5, b has 4"):
        headway.data.range(5).map_batches(lambda batch: {"a": batch["id"], "b": batch["id"][1:]}).take_all()


def test_a_column_of_a_batch_must_be_an_array() -> None:
    with pytest.raises(DataError, match=r"column 'a' must be an array or a list.*int"):
        headway.data.range(5).map_batches(lambda batch: {"a": 1}).take_all()


def test_changing_the_number_of_rows_has_to_be_said() -> None:
    def halved(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"][::2]}

    with pytest.raises(DataError, match=r"3 rows of 5.*keeps_rows=False"):
        headway.data.range(5).map_batches(halved).take_all()
    assert values(headway.data.range(5).map_batches(halved, keeps_rows=False), "id") == [0, 2, 4]


def test_an_added_column_needs_a_value_for_each_row() -> None:
    with pytest.raises(DataError, match=r"4 values for 5 rows"):
        headway.data.range(5).add_column("x", lambda frame: frame["id"][1:]).take_all()


class Unlucky(Exception):
    """Of the user's own."""


def unlucky(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] == 1234:
        raise Unlucky("as foreseen", row["id"])
    return row


@pytest.mark.parametrize(
    "made",
    [
        lambda rows: rows.map(unlucky),
        lambda rows: rows.map(lambda row: row).map(unlucky),
        lambda rows: rows.random_shuffle(seed=3).map(unlucky),
        lambda rows: rows.map(unlucky).random_shuffle(seed=3),
        lambda rows: rows.filter(unlucky),
        lambda rows: rows.flat_map(lambda row: [unlucky(row)]),
        lambda rows: rows.map(unlucky).limit(1500),
        lambda rows: rows.repartition(7).map(unlucky),
        lambda rows: rows.map(unlucky).union(headway.data.range(5)),
        lambda rows: rows.map(unlucky).train_test_split(0.1)[0],
    ],
    ids=["map", "second", "shuffled", "shuffled later", "filter", "flat_map", "limit", "blocks", "union", "split"],
)
def test_an_error_of_a_function_keeps_its_type_names_its_row_and_can_be_had_again(
    made: Callable[[Dataset], Dataset],
) -> None:
    dataset = made(headway.data.range(2000))
    error = error_of(dataset)
    assert type(error) is Unlucky
    assert error.args == ("as foreseen", 1234)
    notes = "\n".join(error.__notes__)
    assert "row 1234" in notes
    assert "probe(1234)" in notes
    again = probed(dataset, error)
    assert again.args == error.args
    assert "unlucky" in "".join(traceback.format_exception(error)), "and its traceback shows the function"


def test_the_note_names_the_file_of_the_row(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 2, id=list(range(1200, 1220)))
    write(tmp_path / "b.parquet", 2, id=list(range(1220, 1240)))
    error = error_of(headway.data.read_parquet(tmp_path).map(unlucky))
    assert re.search(r"b\.parquet, row group 1, row 4", "\n".join(error.__notes__))


@pytest.mark.parametrize("skip", [False, True])
def test_the_note_is_right_where_a_source_leaves_out_rows(tmp_path: Path, skip: bool) -> None:
    write(tmp_path / "a.parquet", 3, id=list(range(1215, 1230)))
    damaged(write(tmp_path / "b.parquet", 3, id=list(range(1000, 1030))), 0)
    write(tmp_path / "c.parquet", 3, id=list(range(1230, 1245)))
    if skip:
        dataset = headway.data.read_parquet(tmp_path, on_error="skip").map(unlucky)
    else:
        files = [tmp_path / "a.parquet", tmp_path / "c.parquet"]
        dataset = headway.data.read_parquet(files, filter="id >= 1220").map(unlucky)
    error = error_of(dataset)
    assert probed(dataset, error).args == ("as foreseen", 1234)


def test_an_error_in_another_process_keeps_its_type_and_names_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 1234:
            raise ZeroDivisionError("as foreseen")
        return row

    monkeypatch.setattr(DataContext.get_current(), "num_threads", 1)
    dataset = headway.data.range(2000).map(bad, executor="process")
    error = error_of(dataset)
    assert (type(error), error.args) == (ZeroDivisionError, ("as foreseen",))
    assert "row 1234" in "\n".join(error.__notes__)
    assert probed(dataset, error).args == error.args


def test_a_function_that_ends_its_process_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataContext.get_current(), "num_threads", 1)
    with pytest.raises(DataError, match=r"died.*exit code 3"):
        headway.data.range(5).map(lambda row: os._exit(3), executor="process").take_all()


def test_a_function_that_cannot_travel_is_named() -> None:
    lock = threading.Lock()

    def locked(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": lock.locked()}

    with pytest.raises(DataError, match=r"locked"):
        headway.data.range(5).map(locked, executor="process").take_all()


def test_an_error_on_a_batch_names_its_rows() -> None:
    def bad(batch: dict[str, Any]) -> dict[str, Any]:
        if 1234 in batch["id"]:
            raise KeyError("nothing there")
        return batch

    dataset = headway.data.range(2000).map_batches(bad, batch_size=100)
    error = error_of(dataset)
    assert type(error) is KeyError
    assert re.search(r"row 12\d\d .* to row 1\d\d\d", error.__notes__[0])


def test_a_note_recommends_no_call_that_cannot_be() -> None:
    def bad(batch: dict[str, Any]) -> dict[str, Any]:
        raise Unlucky

    dataset = headway.data.range(10).map_batches(bad).union(headway.data.range(3))
    notes = "\n".join(error_of(dataset).__notes__)
    assert re.findall(r"probe\((.*?)\)", notes) == ["0"], notes


def test_a_note_of_the_users_own_does_not_hide_ours() -> None:
    def noted(row: dict[str, Any]) -> dict[str, Any]:
        error = ValueError("with a note")
        error.add_note("mine")
        raise error

    error = error_of(headway.data.range(3).map(noted))
    notes = "\n".join(error.__notes__)
    assert "mine" in notes
    assert "probe(0)" in notes


def test_a_stop_iteration_in_a_function_does_not_end_the_data_in_silence() -> None:
    def ends(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": next(iter([]))} if row["id"] == 50 else row

    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        headway.data.range(100).map(ends).take_all()
    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        list(headway.data.range(100).map(ends).iter_batches(batch_size=10))


def test_an_error_of_a_constructor_keeps_its_type() -> None:
    class Broken:
        def __init__(self) -> None:
            raise Unlucky("in the constructor")

        def __call__(self, row: Any) -> Any:
            return row

    assert type(error_of(headway.data.range(3).map(Broken))) is Unlucky


def test_an_error_of_a_collate_function_keeps_its_type() -> None:
    def broken(batch: Any) -> Any:
        raise Unlucky("collating")

    with pytest.raises(Unlucky):
        list(headway.data.range(3).iter_torch_batches(collate_fn=broken))


def test_after_an_error_the_dataset_is_as_good_as_before() -> None:
    broken = [True]

    def sometimes(row: dict[str, Any]) -> dict[str, Any]:
        if broken and row["id"] == 5:
            raise Unlucky
        return row

    dataset = headway.data.range(10).map(sometimes)
    batches = dataset.iter_batches(batch_size=3)
    with pytest.raises(Unlucky):
        list(batches)
    broken.clear()
    assert [len(batch["id"]) for batch in batches] == [3, 3, 3, 1]


def test_a_row_that_is_not_there_cannot_be_probed() -> None:
    with pytest.raises(DataError, match=r"no row 5.*3"):
        headway.data.range(3).probe(5)
    with pytest.raises(DataError, match="no row -1"):
        headway.data.range(3).probe(-1)


# --- columns ---


@pytest.mark.parametrize(
    "ask",
    [
        lambda rows: rows.select_columns(["a", "nope"]),
        lambda rows: rows.drop_columns("nope"),
        lambda rows: rows.rename_columns({"nope": "x"}),
        lambda rows: rows.map(lambda row: row).select_columns(["nope"]),
        lambda rows: rows.sort("nope"),
        lambda rows: rows.sort(["a", "nope"]),
        lambda rows: rows.groupby("nope").count(),
        lambda rows: rows.groupby("a").sum("nope"),
        lambda rows: rows.groupby("nope").map_groups(lambda group: group),
    ],
    ids=["select", "drop", "rename", "select later", "sort", "sort by two", "groupby", "sum of groups", "map_groups"],
)
def test_a_column_that_is_not_there_is_named_with_those_that_are(ask: Callable[[Dataset], Dataset]) -> None:
    with pytest.raises(DataError, match=r"no column 'nope'.*there are a, b"):
        ask(headway.data.from_items([{"a": 1, "b": 2}])).take_all()


@pytest.mark.parametrize("name", ["sum", "min", "max", "mean", "std", "unique"])
def test_a_column_that_is_not_there_has_no_aggregate(name: str) -> None:
    with pytest.raises(DataError, match=r"no column 'nope'.*there are id"):
        getattr(headway.data.range(3), name)("nope")


def test_a_column_that_no_file_has_is_missed(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=[1], y=[2])
    with pytest.raises(DataError, match=r"no column 'nope' in .*a\.parquet; there are x, y"):
        headway.data.read_parquet(tmp_path, columns=["x", "nope"]).count()
    with pytest.raises(DataError, match=r"no column 'nope'.*x, y"):
        headway.data.read_parquet(tmp_path).select_columns("nope")


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_filter_on_a_column_that_is_not_there_is_no_damage(tmp_path: Path, on_error: str) -> None:
    with pytest.raises(DataError, match="nope"):
        headway.data.read_parquet(write(tmp_path / "a.parquet", x=[1]), filter="nope > 1", on_error=on_error).take_all()


def test_a_condition_on_a_column_that_is_not_there_names_it() -> None:
    with pytest.raises(DataError, match="nope"):
        headway.data.range(3).filter(expr="nope > 1").take_all()


@pytest.mark.parametrize("expr", ["id >", "id = 3", "__import__('os')", "id in other", "id[0] > 1", "-id > 3", 5])
def test_a_condition_that_is_none_is_refused_at_once(expr: Any) -> None:
    with pytest.raises(DataError, match=r"(?i)condition|expr"):
        headway.data.range(3).filter(expr=expr)


def test_a_function_and_a_condition_are_one_too_many() -> None:
    with pytest.raises(DataError, match="not both"):
        headway.data.range(3).filter(lambda row: True, expr="id > 1")


def test_tables_of_different_columns_are_refused() -> None:
    tables = [pa.table({"x": [1]}), pa.table({"x": [2], "y": [3]})]
    for given in (tables, tables[::-1]):
        with pytest.raises(DataError, match="y"):
            headway.data.from_arrow(given).take_all()
    with pytest.raises(DataError, match="y"):
        headway.data.from_pandas([table.to_pandas() for table in tables]).take_all()


def test_items_of_different_columns_are_refused() -> None:
    with pytest.raises(DataError, match="differ in b"):
        headway.data.from_items([{"a": 1}, {"a": 1, "b": 2}])


# --- tensors ---


def test_arrays_of_different_shapes_need_a_collate_function() -> None:
    rows = headway.data.from_items([{"image": np.zeros((n, 4, 3))} for n in (2, 3)], override_num_blocks=1)
    with pytest.raises(DataError, match=r"'image' has arrays of different shapes .*\(2, 4, 3\).*collate_fn"):
        list(rows.iter_torch_batches())
    (shapes,) = rows.iter_torch_batches(collate_fn=lambda batch: [torch.as_tensor(x).shape[0] for x in batch["image"]])
    assert shapes == [2, 3]


def test_arrays_of_different_shapes_in_many_blocks_need_a_collate_function() -> None:
    rows = headway.data.from_items([{"image": np.zeros((n, 4, 3))} for n in (2, 3)], override_num_blocks=2)
    with pytest.raises(DataError, match=r"'image' has arrays of different shapes .*\(2, 4, 3\).*collate_fn"):
        list(rows.iter_torch_batches())


@pytest.mark.parametrize("value", ["text", b"bytes", None, pd.Timestamp(0), {"a": 1}])
def test_what_no_tensor_can_hold_is_named_with_remedies(value: Any) -> None:
    rows = headway.data.from_items([{"s": value, "x": 1}] * 3)
    with pytest.raises(DataError, match=r"column 's' holds .* no tensor .*drop_columns.*collate_fn"):
        list(rows.iter_torch_batches())
    (batch,) = rows.drop_columns("s").iter_torch_batches()
    assert batch["x"].tolist() == [1, 1, 1]


def test_lists_of_different_lengths_are_no_tensor() -> None:
    with pytest.raises(DataError, match=r"'x' has arrays of different shapes"):
        list(headway.data.from_items([{"x": [1]}, {"x": [1, 2]}]).iter_torch_batches())


def test_a_feature_that_is_not_there_is_named() -> None:
    with pytest.raises(DataError, match="no column 'nope'"):
        list(headway.data.range(3).to_torch(feature_columns=["nope"]))
    with pytest.raises(DataError, match="no column 'nope'"):
        list(headway.data.range(3).to_torch(label_column="nope"))


# --- memory ---


def test_a_function_that_makes_more_than_the_budget_is_stopped(budget: Callable[[int], None]) -> None:
    budget(4 << 20)
    dataset = headway.data.range(64).map(lambda row: {"x": np.zeros(1 << 17)})
    with pytest.raises(DataError, match=r"map\(.*made 64 MiB of 64 rows.*budget of 4 MiB.*memory_budget_bytes"):
        list(dataset.iter_batches(batch_size=64))
    assert sum(len(batch["x"]) for batch in dataset.iter_batches(batch_size=2)) == 64, "smaller batches help"


def test_a_row_group_that_is_larger_than_the_budget_is_named(tmp_path: Path, budget: Callable[[int], None]) -> None:
    file = write(tmp_path / "a.parquet", x=np.random.default_rng(0).random(1 << 19))
    budget(2 << 20)
    with pytest.raises(DataError, match=r"a\.parquet, row group 0 .* 4 MiB.*budget of 2 MiB.*smaller row groups"):
        list(headway.data.read_parquet(file).iter_batches())


def test_what_does_not_fit_into_memory_as_a_whole_is_read_in_parts(
    tmp_path: Path, budget: Callable[[int], None]
) -> None:
    file = write(tmp_path / "a.parquet", 16, x=np.random.default_rng(0).random(1 << 19))
    budget(2 << 20)
    dataset = headway.data.read_parquet(file)
    assert sum(len(batch["x"]) for batch in dataset.iter_batches(batch_size=1000)) == 1 << 19
    shuffled = dataset.random_shuffle(window_rows=20_000).iter_batches(batch_size=1000)
    for _ in range(2):
        assert sum(len(batch["x"]) for batch in shuffled) == 1 << 19


def test_a_full_shuffle_that_does_not_fit_is_refused_with_the_remedy(
    tmp_path: Path, budget: Callable[[int], None]
) -> None:
    file = write(tmp_path / "a.parquet", 16, x=np.random.default_rng(0).random(1 << 19))
    budget(2 << 20)
    with pytest.raises(DataError, match=r"budget of 2 MiB.*memory_budget_bytes"):
        list(headway.data.read_parquet(file).random_shuffle(shuffle="full").iter_batches(batch_size=1000))


# --- nothing ---


def test_an_empty_dataset_says_so() -> None:
    with pytest.raises(DataError, match="empty"):
        headway.data.range(0).take_batch()
    with pytest.raises(DataError, match="empty"):
        headway.data.range(5).filter(lambda row: False).take_batch()


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_nothing_cannot_be_written(tmp_path: Path, form: str) -> None:
    with pytest.raises(DataError, match="empty: there is nothing to write"):
        getattr(headway.data.range(0), f"write_{form}")(tmp_path / "out")


def test_what_a_form_cannot_hold_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'data' holds .*CSV"):
        headway.data.range_tensor(3).write_csv(tmp_path / "csv")
    objects = headway.data.range(3).map(lambda row: {"o": object})
    with pytest.raises(DataError, match="'o' holds Python objects"):
        objects.write_parquet(tmp_path / "parquet")


@pytest.mark.parametrize("name", ["rows.json", "rows.json.gz"])
@pytest.mark.parametrize("text", ['[{"a": 1}, {"a": 2}]', '\n[\n {"a": 1},\n {"a": 2}\n]\n', '{\n "a": 1\n}\n'])
def test_json_that_is_not_in_lines_is_refused_with_what_to_write(tmp_path: Path, name: str, text: str) -> None:
    if name.endswith("gz") and "[" not in text:
        return  # read as a whole, where Arrow takes objects of several lines
    data = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with pytest.raises(DataError, match=r"cannot be read: .*: read_json takes JSON lines, an object in each") as caught:
        headway.data.read_json(tmp_path / name).take_all()
    assert str(tmp_path / name) in str(caught.value)
    if text.strip().startswith("["):
        with pytest.raises(DataError, match="read_json takes JSON lines"):
            headway.data.read_json(tmp_path / name).count()


def test_an_aggregate_that_a_column_has_not_is_refused_with_its_name() -> None:
    data = headway.data.from_items([{"k": 1, "s": "x"}, {"k": 2, "s": "y"}])
    for name in ("mean", "sum", "std"):
        with pytest.raises(DataError, match="cannot be computed: column 's' holds"):
            getattr(data, name)("s")
        with pytest.raises(DataError, match=rf"{name}\(s\) cannot be computed: column 's' holds"):
            getattr(data.groupby("k"), name)("s").take_all()


def test_an_option_of_another_library_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no option sep; there are parse_options, convert_options, read_options"):
        headway.data.read_csv(tmp_path, sep=";")


# --- questions ---


def rows() -> Dataset:
    return headway.data.range(10)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: rows().iter_batches(batch_format="torch"), r"batch_format must be one of numpy.*'torch'"),
        (lambda: rows().map_batches(len, batch_format="list"), r"batch_format must be one of numpy.*'list'"),
        (lambda: rows().take_batch(batch_format="x"), r"batch_format must be one of"),
        (lambda: rows().add_column("x", len, batch_format="x"), r"batch_format must be one of"),
        (lambda: rows().iter_batches(batch_size=0), r"batch_size must be a positive number.*got 0"),
        (lambda: rows().iter_batches(batch_size=-3), r"batch_size must be a positive number.*got -3"),
        (lambda: rows().iter_batches(batch_size=2.5), r"batch_size must be a positive number.*got 2\.5"),
        (lambda: rows().iter_torch_batches(batch_size="8"), r"batch_size must be a positive number.*got '8'"),
        (lambda: rows().map_batches(len, batch_size=0), r"batch_size must be a positive number.*got 0"),
        (lambda: rows().iter_batches(prefetch_batches=-1), r"prefetch_batches must not be negative"),
        (lambda: rows().iter_batches(local_shuffle_buffer_size=0), r"local_shuffle_buffer_size must be positive"),
        (lambda: rows().map(len, executor="fiber"), r'executor must be "thread", "process" or None.*\'fiber\''),
        (lambda: rows().filter(len, executor="x"), r"executor must be"),
        (lambda: rows().map(len, concurrency=0), r"concurrency must be a positive number.*got 0"),
        (lambda: rows().map(len, concurrency="many"), r"concurrency must be a positive number.*'many'"),
        (lambda: rows().map(len, concurrency=(1, "x")), r"concurrency must be a positive number"),
        (lambda: rows().map(len, concurrency=()), r"concurrency must be a positive number"),
        (lambda: rows().map(5), r"a function or a class is needed, got 5"),
        (lambda: rows().map(len, concurency=3), r"no option concurency"),
        (lambda: rows().map_batches(len, keep_rows=False), r"no option keep_rows"),
        (lambda: rows().filter(len, concurency=3), r"no option concurency"),
        (lambda: rows().limit(-1), r"limit must not be negative"),
        (lambda: rows().random_shuffle(shuffle="some"), r"shuffle must be \"window\" or \"full\""),
        (lambda: rows().random_shuffle(window_rows=0), r"window_rows must be positive"),
        (lambda: rows().repartition(0), r"repartition needs a positive number"),
        (lambda: rows().split(0), r"split needs a positive number"),
        (lambda: rows().split_at_indices([5, 2]), r"must not fall"),
        (lambda: rows().split_proportionately([0.5, 0.5]), r"proportions must"),
        (lambda: rows().sort("id", descending=[True, False]), r"descending needs one value or 1"),
        (lambda: headway.data.range(-1), r"not negative, got -1"),
        (lambda: headway.data.range_tensor(-1), r"not negative, got -1"),
        (lambda: headway.data.from_torch(iter([1])), r"from_torch needs .*__len__"),
        (lambda: headway.data.read_parquet(__file__, on_error="ignore"), r'on_error must be "raise" or "skip"'),
    ],
)
def test_a_bad_question_is_refused_at_once(ask: Callable[[], Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        ask()


@pytest.mark.parametrize(
    "ask",
    [
        lambda: rows().flat_map(lambda row: [row], nonsense=1),
        lambda: rows().iter_batches(nonsense=1),  # type: ignore[call-arg]
        lambda: rows().random_shuffle(nonsense=1),
        lambda: rows().repartition(2, nonsense=1),
        lambda: headway.data.range(3, nonsense=1),
        lambda: headway.data.read_parquet(__file__, nonsense=1),
        lambda: headway.data.read_csv(__file__, delimiter=";"),
        lambda: headway.data.read_json(__file__, nonsense=1),
    ],
    ids=["flat_map", "iter_batches", "random_shuffle", "repartition", "range", "parquet", "csv", "json"],
)
def test_an_option_that_we_do_not_have_is_not_passed_over(ask: Callable[[], Any]) -> None:
    with pytest.raises((DataError, TypeError), match=r"nonsense|delimiter"):
        ask()


def tar_header(size: int, kind: bytes = b"0") -> bytes:
    """Of a member ``a.txt``; tarfile does not write negative sizes."""
    header = bytearray(tarfile.TarInfo("a.txt").tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = size.to_bytes(12, "big", signed=True) if size < 0 else b"%011o\0" % size
    header[156:157] = kind
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * ord(" "))
    return bytes(header)


GOOD_MEMBER = tar_header(5) + b"hello".ljust(512, b"\0")


@pytest.mark.parametrize(
    "bad",
    [
        *(tar_header(-size, kind) for size in (512, 1024) for kind in (b"0", b"5", b"L", b"x", b"S")),
        tar_header(1 << 32, b"x"),
        tar_header(5).replace(b"a.txt", b"b.txt"),  # the checksum is wrong
        tar_header(5)[:300],
    ],
)
def test_a_damaged_header_in_a_tar_file_is_an_error_and_not_its_end(bad: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(GOOD_MEMBER * 3 + bad)
    with pytest.raises(DataError, match=r"x\.tar is not a tar file that can be read"):
        headway.data.read_webdataset(tmp_path / "x.tar").take_all()


@pytest.mark.parametrize("name", ["a.json", "a.png", "a.npy"])
def test_content_that_its_library_cannot_take_names_the_sample(name: str, tmp_path: Path) -> None:
    huge = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x9c\x40\0\0\x9c\x40\x08\x02\0\0\0"
    huge += zlib.crc32(huge[12:]).to_bytes(4, "big") + b"\0\0\0\0IDAT" + zlib.crc32(b"IDAT").to_bytes(4, "big")
    shape = io.BytesIO()
    np.lib.format.write_array_header_1_0(shape, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})  # type: ignore[arg-type]
    data = {"a.json": b"[" * 200_000, "a.png": huge, "a.npy": shape.getvalue()}[name]
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    with pytest.raises(DataError, match=rf"x\.tar: a\.{name[2:]} cannot be read"):
        headway.data.read_webdataset(tmp_path / "x.tar").take_all()


def test_a_pipe_among_the_files_is_an_error_and_no_hang(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    os.mkfifo(tmp_path / "b.txt")
    for path in (tmp_path, tmp_path / "b.txt"):  # a pattern takes files only
        with pytest.raises(DataError, match=r"b\.txt is not a file"):
            headway.data.read_text(path)
    assert headway.data.read_text(str(tmp_path / "*.txt")).count() == 1


def test_a_directory_that_cannot_be_read_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "a.txt").write_text("x\n")
    (tmp_path / "more" / "b.txt").write_text("y\n")
    scandir = os.scandir

    def refusing(path: Any) -> Any:  # permissions would not stop root
        if os.path.basename(path) == "more":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(DataError, match="more cannot be read: Permission denied"):
        headway.data.read_text(tmp_path)
