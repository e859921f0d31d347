"""An open run directory: what it records, and what changed since the last opening."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headway.core.schema.journal_entries import LaunchEntry
from headway.core.schema.run_description import DatasetDescription, Opening
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.run import layout
from headway.storage.run.journal import journal
from headway.storage.run.opening import open_run
from headway.storage.run.run_directory import RunDirectory


def test_entries_are_added_to_the_journal_and_lines_to_the_metrics(tmp_path: Path) -> None:
    opened = open_run(tmp_path / "run", "auto")
    opened.note(LaunchEntry(attempt=1, num_workers=2, first_seq=0))
    opened.record(b'{"a": 1}\n')
    opened.close()
    assert [type(entry) for entry in journal(tmp_path / "run").lines()] == [LaunchEntry]
    assert (tmp_path / "run" / layout.METRICS).read_bytes() == b'{"a": 1}\n'
    assert opened.complaint is None
    assert not (tmp_path / "run" / layout.DATA).exists(), "a run without datasets has no statistics"


@pytest.mark.parametrize(
    ("asked", "differences"),
    [
        (Opening(train_loop_config={"lr": 1}, function="f", code="1"), []),
        (Opening(train_loop_config={"lr": 2}, function="f", code="1"), ["train_loop_config: lr 1 → 2"]),
        (Opening(train_loop_config={"lr": 1}, function="f", code="2"), ["the code of f"]),
    ],
)
def test_changed_settings_are_named(asked: Opening, differences: list[str], tmp_path: Path) -> None:
    first = open_run(tmp_path / "run", "auto")
    assert first.differences(asked) == []
    first.describe(Opening(train_loop_config={"lr": 1}, function="f", code="1"))
    first.close()
    again = open_run(tmp_path / "run", "auto")
    assert again.differences(asked) == differences
    again.close()


def test_changed_functions_and_windows_of_datasets_are_named(tmp_path: Path) -> None:
    before = DatasetDescription(rows=None, source="files", fingerprint="f", lanes=2, window=8, filter_code="1")
    opened = open_run(tmp_path / "run", "auto")
    opened.describe(Opening(datasets={"train": before, "old": replace(before, filter_code=None)}))
    asked = {"train": replace(before, window=16, filter_code="2"), "old": before}
    assert opened.differences(Opening(datasets=asked)) == [
        "the code of the functions that drop rows of dataset 'train'",
        "the shuffle window of dataset 'train': 8 → 16 rows",
    ]
    opened.close()


def test_long_changes_are_shortened(tmp_path: Path) -> None:
    opened = open_run(tmp_path / "run", "auto")
    opened.describe(Opening(train_loop_config={"text": "x"}))
    [text] = opened.differences(Opening(train_loop_config={"text": "y" * 10_000}))
    opened.close()
    assert len(text) < 600
    assert text.endswith("…")


def test_checkpoints_in_memory_are_made_outside_the_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit: list[Callable[[], object]] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    opened: RunDirectory = open_run(tmp_path / "run", "auto")
    assert (opened.root, opened.backend) == (opened.path, opened.durable_backend)
    opened.keep_checkpoints_in_memory()
    assert opened.root != opened.path
    assert opened.backend is opened.memory
    assert opened.backend is not opened.durable_backend
    opened.close()
    for remove in at_exit:
        remove()
    assert not opened.root.exists()


def test_the_dict_that_a_run_starts_from_is_kept_and_proven(tmp_path: Path) -> None:
    opened = open_run(tmp_path / "run", "auto")
    kept = opened.keep_first(Checkpoint.from_dict({"epoch": 3, "kind": RuntimeError}))
    assert kept.path == str(tmp_path / "run" / layout.FIRST)
    assert kept.to_dict() == {"epoch": 3, "kind": RuntimeError}
    opened.close()
