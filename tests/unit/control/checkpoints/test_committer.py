"""The committer: a failed removal does not stop later jobs."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.control.checkpoints.committer import CheckpointCommitter, WarningEvent
from headway.control.machine.events import (
    CommitCheckpoint,
    CommitDoneEvent,
    CommitFailedEvent,
    RetireCheckpoint,
    SweepAttempt,
    WithdrawCheckpoint,
)
from headway.control.machine.report_rounds import ReportRound
from headway.core.messages import Report
from headway.core.schema.data_cursor import DatasetPosition
from headway.storage.checkpoint import backend
from headway.storage.checkpoint.staging import Slot
from headway.storage.run import layout
from headway.storage.run.opening import open_run


@contextmanager
def committer_of(run: Path) -> Iterator[tuple[CheckpointCommitter, queue.Queue[Any]]]:
    rundir = open_run(run, "auto")
    posted: queue.Queue[Any] = queue.Queue()
    committer = CheckpointCommitter(rundir.backend, posted.put)
    committer.open()
    try:
        yield committer, posted
    finally:
        committer.close()
        rundir.close()


def commit(run: Path, seq: int, *, files: bool = True) -> CommitCheckpoint:
    if files:
        directory = Slot(run, 1, seq, 0).folder
        directory.mkdir(parents=True)
        (directory / "file").write_text(str(seq))
    return CommitCheckpoint(1, ReportRound(seq, (Report(seq, 0.0, b"{}", True),)), number=seq, name=None)


def test_a_checkpoint_that_cannot_be_removed_is_reported_and_the_next_one_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def discard(path: Path) -> None:
        raise PermissionError(f"not yours: {path.name}")

    monkeypatch.setattr(backend, "discard", discard)
    run = tmp_path / "run"
    with committer_of(run) as (committer, posted):
        committer.perform(commit(run, 0))
        done = posted.get(timeout=30)
        assert isinstance(done, CommitDoneEvent)
        committer.perform(RetireCheckpoint(done.saved, ""))
        warning = posted.get(timeout=30)
        assert warning == WarningEvent("old checkpoint files could not be removed: not yours: checkpoint_000000")
        committer.perform(commit(run, 2, files=False))
        assert isinstance(posted.get(timeout=30), CommitFailedEvent)


def test_a_checkpoint_that_cannot_be_removed_does_not_stop_the_removal_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = backend.discard

    def discard(path: Path) -> None:
        if path.name == "checkpoint_000000":
            raise PermissionError(f"not yours: {path.name}")
        real(path)

    monkeypatch.setattr(backend, "discard", discard)
    run = tmp_path / "run"
    with committer_of(run) as (committer, posted):
        done = []
        for seq in range(4):
            committer.perform(commit(run, seq))
            done.append(next(each for each in iter(posted.get, None) if isinstance(each, CommitDoneEvent)))
            if seq:
                committer.perform(RetireCheckpoint(done[seq - 1].saved, ""))
    kept = sorted(path.name for path in (run / layout.CHECKPOINTS).glob("checkpoint_*"))
    assert kept == ["checkpoint_000000", "checkpoint_000003"]
    assert posted.empty(), "a failed removal is reported once"


def test_a_checkpoint_is_withdrawn_although_its_commit_is_still_in_the_queue(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with committer_of(run) as (committer, _):
        committer.perform(commit(run, 7))
        committer.perform(WithdrawCheckpoint(7, "crossed"))
    assert not layout.checkpoint(run, 7).exists()


def test_the_removal_of_a_withdrawn_checkpoint_is_retried_at_the_end_of_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next opening would resume from it."""
    run, discard, attempts = tmp_path / "run", backend.discard, []

    def discard_at_second_attempt(path: Path) -> None:
        attempts.append(path)
        if len(attempts) == 1:
            raise PermissionError("not now")
        discard(path)

    monkeypatch.setattr(backend, "discard", discard_at_second_attempt)
    with committer_of(run) as (committer, posted):
        committer.perform(commit(run, 7))
        committer.perform(WithdrawCheckpoint(7, "crossed"))
        assert isinstance(posted.get(timeout=30), CommitDoneEvent)
        assert posted.get(timeout=30) == WarningEvent("old checkpoint files could not be removed: not now")
        committer.perform(SweepAttempt(1, frozenset(), frozenset()))
    assert not layout.checkpoint(run, 7).exists()


def test_positions_in_datasets_are_unknown_where_a_rank_has_not_reported(tmp_path: Path) -> None:
    """The positions of the other ranks are not mistaken for those of a run with fewer ranks."""
    run = tmp_path / "run"
    with committer_of(run) as (committer, posted):
        request = commit(run, 0)
        (staged,) = request.round.reports
        assert staged is not None
        first, third = (staged._replace(cursor=cursor(rows)) for rows in (8, 16))
        reports = (first, None, third._replace(staged=False))
        committer.perform(replace(request, round=ReportRound(0, reports)))
        done = posted.get(timeout=30)
    assert isinstance(done, CommitDoneEvent), done
    assert done.saved.manifest.cursor.of_datasets()["train"].positions is None


def cursor(rows: int) -> bytes:
    position = DatasetPosition(
        epoch=0, rows=rows, skip=0, done=False, lanes=2, window=0, local=None, files="abc", crosses=None
    )
    return json.dumps({"train": position.to_json()}).encode()
