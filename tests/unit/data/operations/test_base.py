"""Errors of user functions keep their type and name their row."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headway.data
from data_examples import Unlucky, damaged, error_of, probed, write_groups
from headway.data import Dataset


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
def test_an_error_of_a_function_keeps_its_type_names_its_row_and_can_be_reproduced(
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
    write_groups(tmp_path / "a.parquet", 2, id=list(range(1200, 1220)))
    write_groups(tmp_path / "b.parquet", 2, id=list(range(1220, 1240)))
    error = error_of(headway.data.read_parquet(tmp_path).map(unlucky))
    assert re.search(r"row 4 of .*b\.parquet, row group 1", "\n".join(error.__notes__))


@pytest.mark.parametrize("skip", [False, True])
def test_the_note_is_right_where_a_source_leaves_out_rows(tmp_path: Path, skip: bool) -> None:
    write_groups(tmp_path / "a.parquet", 3, id=list(range(1215, 1230)))
    damaged(write_groups(tmp_path / "b.parquet", 3, id=list(range(1000, 1030))), 0)
    write_groups(tmp_path / "c.parquet", 3, id=list(range(1230, 1245)))
    if skip:
        dataset = headway.data.read_parquet(tmp_path, on_error="skip").map(unlucky)
    else:
        files = [tmp_path / "a.parquet", tmp_path / "c.parquet"]
        dataset = headway.data.read_parquet(files, filter="id >= 1220").map(unlucky)
    error = error_of(dataset)
    assert probed(dataset, error).args == ("as foreseen", 1234)


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


def test_a_stop_iteration_in_a_function_does_not_end_the_data_silently() -> None:
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
