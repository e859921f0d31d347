"""Which files are read: directories, patterns, stores, and what is refused."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

import headway.data
from data_examples import pairs, tar, values, write, write_groups
from headway.data import DataError
from headway.data.datasource.file_listing import SAMPLES, find
from s3 import S3


def test_a_file_a_directory_a_pattern_and_a_list_are_read(tmp_path: Path) -> None:
    files = [write(tmp_path / "data" / f"{n}.parquet", x=[n, n + 0.5, n + 0.75]) for n in range(3)]
    everything = [n + part for n in range(3) for part in (0, 0.5, 0.75)]
    assert values(headway.data.read_parquet(files[1]), "x") == [1, 1.5, 1.75]
    assert values(headway.data.read_parquet(str(tmp_path / "data")), "x") == everything
    assert values(headway.data.read_parquet(tmp_path / "data" / "[12].parquet"), "x") == everything[3:]
    assert values(headway.data.read_parquet(f"{tmp_path}/**/*.parquet"), "x") == everything
    assert values(headway.data.read_parquet([files[2], str(files[0])]), "x") == everything[6:] + everything[:3]


def _csv(path: Path, rows: list[int]) -> headway.data.Dataset:
    path.write_text("x\n" + "".join(f"{row}\n" for row in rows))
    return headway.data.read_csv(path)


def _json(path: Path, rows: list[int]) -> headway.data.Dataset:
    path.write_text("".join(f'{{"x": {row}}}\n' for row in rows))
    return headway.data.read_json(path)


def _npy(path: Path, rows: list[int]) -> headway.data.Dataset:
    np.save(path.with_suffix(".npy"), np.array(rows))
    return headway.data.read_numpy(path.with_suffix(".npy"))


def _parquet(path: Path, rows: list[int]) -> headway.data.Dataset:
    pq.write_table(pa.table({"x": rows}), path, use_dictionary=False, compression="none")
    return headway.data.read_parquet(path)


def _tar(path: Path, rows: list[int]) -> headway.data.Dataset:
    tar(path, {f"{number}.cls": f"{row}".encode() for number, row in enumerate(rows)})
    return headway.data.read_webdataset(path)


@pytest.mark.parametrize("written", [_csv, _json, _npy, _parquet, _tar])
@pytest.mark.parametrize("num_rows", [40, 9000])
def test_files_of_the_same_size_with_other_contents_are_told_apart(
    written: Callable[[Path, list[int]], headway.data.Dataset], num_rows: int, tmp_path: Path
) -> None:
    rows = list(range(1000, 1000 + num_rows))
    (tmp_path / "copy").mkdir()
    first = written(tmp_path / "a", rows).plan.fingerprint()
    copied = written(tmp_path / "copy" / "a", rows).plan.fingerprint()
    assert copied == first
    assert written(tmp_path / "a", rows[::-1]).plan.fingerprint() != first
    limited = written(tmp_path / "a", rows).limit(30).union(headway.data.range(3)).zip(headway.data.range(33)).plan
    assert (
        limited.fingerprint()
        != written(tmp_path / "a", rows[::-1])
        .limit(30)
        .union(headway.data.range(3))
        .zip(headway.data.range(33))
        .plan.fingerprint()
    )


def test_few_blocks_of_many_files_are_read(tmp_path: Path) -> None:
    for number in range(SAMPLES + 100):
        (tmp_path / f"{number:04}.bin").write_bytes(bytes(100))
    known = find(tmp_path).contents()
    (tmp_path / "0001.bin").write_bytes(bytes([1]) * 100)
    assert find(tmp_path).contents() == known  # one of the files that are not read
    for path in tmp_path.iterdir():
        path.write_bytes(bytes([1]) * 100)
    assert find(tmp_path).contents() != known


def test_only_data_files_of_a_directory_are_read(tmp_path: Path) -> None:
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


def test_lines_and_directories_named_key_value_are_read_from_an_object_store(s3: S3, tmp_path: Path) -> None:
    s3.put("lines/a.csv", b"a,b\n1,x\n2,y\n")
    s3.put("lines/b.csv", b"a,b\n3,z")
    assert values(headway.data.read_csv(f"{s3.url}/lines"), "a") == [1, 2, 3]
    for n in (1, 2):
        s3.put(f"hive/n={n}/x.parquet", write(tmp_path / "x.parquet", x=[n, n]).read_bytes())
    assert pairs(headway.data.read_parquet(f"{s3.url}/hive"), "x", "n") == [(1, 1), (1, 1), (2, 2), (2, 2)]


def test_files_missing_in_an_object_store_are_reported_at_once(s3: S3) -> None:
    with pytest.raises(DataError, match="nowhere"):
        headway.data.read_parquet(f"{s3.url}/nowhere")


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


@pytest.mark.parametrize("path", ["missing", "missing/*.parquet", "none"])
def test_missing_files_are_reported_at_once(tmp_path: Path, path: str) -> None:
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
            dataset = headway.data.read_parquet(write_groups(file, x=[1, 2]))
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
    with pytest.raises(DataError, match=rf"a\.{suffix}.* no longer exists"):
        list(batches)


def test_a_pipe_among_the_files_is_an_error_and_no_hang(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    os.mkfifo(tmp_path / "b.txt")
    for path in (tmp_path, tmp_path / "b.txt"):  # a pattern takes files only
        with pytest.raises(DataError, match=r"b\.txt is not a regular file"):
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
