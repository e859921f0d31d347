"""Failure bundles: written atomically, read back, and replayed only if the run has signed them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.core.errors import StorageError
from headway.core.security.signing import Key
from headway.storage.run import failure_bundle, layout
from headway.storage.run.failure_bundle import FailureBundle, StoredFailure
from support import failure_summary

KEY = Key(b"of the run")
SUMMARY = failure_summary(time=2.0)
BUNDLE = FailureBundle("attempt-001", SUMMARY, {1: "in load (train.py:12)"}, b"packed", KEY)


def test_a_bundle_is_read_back(tmp_path: Path) -> None:
    (tmp_path / layout.LOGS).mkdir()
    layout.log(tmp_path, 0, "out").write_text("".join(f"line {number}\n" for number in range(300)))
    folder = failure_bundle.write(tmp_path, BUNDLE)
    assert failure_bundle.bundles(tmp_path) == [folder]
    assert failure_bundle.summary(folder).cause == "rank 0 was killed"
    assert failure_bundle.stacks(folder, 1) == "in load (train.py:12)"
    assert failure_bundle.stacks(folder, 0) == ""
    lines = (folder / "rank-0.log.txt").read_text().splitlines()
    assert (len(lines), lines[-1]) == (failure_bundle.LOG_LINES + 1, "line 299")
    assert StoredFailure.read(folder).task(KEY, trust=False) == b"packed"


def test_a_second_bundle_of_the_same_name_replaces_the_first(tmp_path: Path) -> None:
    failure_bundle.write(tmp_path, BUNDLE)
    folder = failure_bundle.write(tmp_path, replace(BUNDLE, stacks={}))
    assert failure_bundle.stacks(folder, 1) == ""
    assert [path.name for path in folder.parent.iterdir()] == ["attempt-001"]


def test_a_run_directory_that_has_disappeared_is_not_created_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        failure_bundle.write(tmp_path / "gone", BUNDLE)
    assert not (tmp_path / "gone").exists()


def test_a_function_that_was_changed_or_signed_by_another_run_needs_trust(tmp_path: Path) -> None:
    folder = failure_bundle.write(tmp_path, BUNDLE)
    with pytest.raises(StorageError, match="it is not proven"):
        StoredFailure.read(folder).task(Key(b"of another run"), trust=False)
    (folder / failure_bundle.TASK).write_bytes(b"another")
    with pytest.raises(StorageError, match="it is not proven"):
        StoredFailure.read(folder).task(KEY, trust=False)
    assert StoredFailure.read(folder).task(KEY, trust=True) == b"another"


def test_a_stall_has_no_function_to_replay(tmp_path: Path) -> None:
    folder = failure_bundle.write(tmp_path, replace(BUNDLE, task=b""))
    assert not failure_bundle.can_replay(folder)
    with pytest.raises(StorageError, match="contains no function to replay"):
        StoredFailure.read(folder).task(KEY, trust=False)


def test_damaged_bundles_are_listed_apart_and_good_ones_by_time(tmp_path: Path) -> None:
    late = failure_bundle.write(tmp_path, BUNDLE)
    early = failure_bundle.write(tmp_path, replace(BUNDLE, name="attempt-002", summary=replace(SUMMARY, time=1.0)))
    torn = failure_bundle.write(tmp_path, replace(BUNDLE, name="attempt-003"))
    (torn / failure_bundle.SUMMARY).write_text("{")
    assert failure_bundle.bundles(tmp_path) == [early, late]
    [(path, reason)] = failure_bundle.damaged(tmp_path).items()
    assert path == torn
    assert "is damaged" in reason
