"""Rows and files that tests of data use."""

from __future__ import annotations

import io
import re
import tarfile
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

import headway.data
from headway.data import Dataset


def ids(dataset: Dataset, column: str = "id") -> list[Any]:
    return [row[column] for row in dataset.take_all()]


def of(batches: Any, column: str = "id") -> list[Any]:
    return [value for batch in batches for value in batch[column].tolist()]


def some(rows: int = 10) -> Dataset:
    return headway.data.from_items([{"a": n, "b": str(n), "c": n / 2} for n in range(rows)])


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


def write(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def values(dataset: Dataset, column: str) -> list[Any]:
    rows = [row[column] for row in dataset.take_all()]
    assert dataset.count() == len(rows)
    return rows


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


def pairs(dataset: Dataset, *columns: str) -> list[Any]:
    return sorted(tuple(row[name] for name in columns) for row in dataset.take_all())


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


NOISE = b"\xff" * 24


def write_groups(path: Path, groups: int = 1, **columns: Any) -> Path:
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


def values_of(dataset: Dataset, column: str = "x") -> list[Any]:
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


class Unlucky(Exception):
    """Of the user's own."""


def rows() -> Dataset:
    return headway.data.range(10)
