"""Datasets as files: complete or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headway.data
from data_examples import VALUES
from headway.core.errors import ConfigError
from headway.data import DataError
from s3 import S3

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


def test_a_uri_with_one_slash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="did you mean 's3://bucket/out'"):
        headway.data.from_arrow(TABLE).write_parquet("s3:/bucket/out")
    assert not list(tmp_path.iterdir())


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


def test_nan_comes_back_from_json(tmp_path: Path) -> None:
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


def test_row_groups_have_the_requested_size(tmp_path: Path) -> None:
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


def test_a_dataset_may_be_written_to_the_directory_that_it_is_read_from(
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


def test_two_writes_to_one_directory_are_never_mixed(tmp_path: Path) -> None:
    def write_there(row: dict[str, Any]) -> dict[str, Any]:
        with pytest.raises(DataError, match="another program or worker is writing to"):
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
    with pytest.raises(DataError, match="contains files of two datasets"):
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
def test_a_uri_may_name_a_new_directory_of_this_machine(tmp_path: Path, scheme: str) -> None:
    headway.data.range(3).write_parquet(f"{scheme}://{tmp_path}/new/rows")
    assert headway.data.read_parquet(tmp_path / "new" / "rows").count() == 3
    assert headway.data.read_parquet(f"{scheme}://{tmp_path}/new/rows").count() == 3


@given(st.lists(VALUES, min_size=1, max_size=20))
@settings(max_examples=30)
def test_any_rows_come_back_from_parquet(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        headway.data.from_items(rows).write_parquet(folder, row_group_rows=3)
        assert headway.data.read_parquet(folder).take_all() == rows


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


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_an_empty_dataset_cannot_be_written(tmp_path: Path, form: str) -> None:
    with pytest.raises(DataError, match="empty: there is nothing to write"):
        getattr(headway.data.range(0), f"write_{form}")(tmp_path / "out")


def test_what_a_form_cannot_hold_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'data' has type .*CSV"):
        headway.data.range_tensor(3).write_csv(tmp_path / "csv")
    objects = headway.data.range(3).map(lambda row: {"o": object})
    with pytest.raises(DataError, match="'o' contains Python objects"):
        objects.write_parquet(tmp_path / "parquet")
