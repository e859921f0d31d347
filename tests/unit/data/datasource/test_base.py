"""Columns and options that do not exist are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import headway.data
from headway.data import DataError, Dataset


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
def test_a_missing_column_is_named_with_those_that_exist(ask: Callable[[Dataset], Dataset]) -> None:
    with pytest.raises(DataError, match=r"no column 'nope'.*its columns are a, b"):
        ask(headway.data.from_items([{"a": 1, "b": 2}])).take_all()


def test_an_option_of_another_library_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"read_csv takes no 'sep': it has paths, .*, parse_options, convert_options, read_options"
    ):
        headway.data.read_csv(tmp_path, sep=";")
