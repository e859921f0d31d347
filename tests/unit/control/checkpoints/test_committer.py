"""The ledger: what goes wrong while tidying up does not stop what comes after it."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest

from headway.control.checkpoints.committer import CheckpointCommitter, WarningEvent
from headway.control.machine.events import CommitDoneEvent, CommitFailedEvent
from headway.control.machine.report_rounds import ReportRound
from headway.core.config import CheckpointConfig
from headway.core.messages import Report
from headway.storage.checkpoint import backend
from headway.storage.checkpoint.staging import Slot
from headway.storage.run import layout
from headway.storage.run.opening import open_run


def a_round(run: Path, seq: int, *, files: bool = True) -> ReportRound:
    if files:
        folder = Slot(run, 1, seq, 0).folder
        folder.mkdir(parents=True)
        (folder / "file").write_text(str(seq))
    return ReportRound(seq, (Report(seq, 0.0, b"{}", True),))


def test_a_checkpoint_that_cannot_be_removed_is_complained_about_and_the_next_one_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def discard(path: Path) -> None:
        raise PermissionError(f"not yours: {path.name}")

    monkeypatch.setattr(backend, "discard", discard)
    rundir = open_run(tmp_path / "run", "auto")
    ledger = CheckpointCommitter(rundir, CheckpointConfig(num_to_keep=1))
    posted: queue.Queue[Any] = queue.Queue()
    ledger.open(posted.put)
    try:
        for seq in range(2):
            ledger.commit(1, a_round(rundir.path, seq))
            done = posted.get(timeout=5)
            assert isinstance(done, CommitDoneEvent)
            ledger.committed(done.saved)
        complaint = posted.get(timeout=5)
        assert complaint == WarningEvent("old checkpoint files could not be removed: not yours: checkpoint_000000")
        ledger.commit(1, a_round(rundir.path, 2, files=False))
        assert isinstance(posted.get(timeout=5), CommitFailedEvent)
    finally:
        ledger.close()
        rundir.close()


def test_a_checkpoint_that_cannot_be_removed_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = backend.discard

    def discard(path: Path) -> None:
        if path.name == "checkpoint_000000":
            raise PermissionError(f"not yours: {path.name}")
        real(path)

    monkeypatch.setattr(backend, "discard", discard)
    rundir = open_run(tmp_path / "run", "auto")
    ledger = CheckpointCommitter(rundir, CheckpointConfig(num_to_keep=1))
    posted: queue.Queue[Any] = queue.Queue()
    ledger.open(posted.put)
    for seq in range(4):
        ledger.commit(1, a_round(rundir.path, seq))
        ledger.committed(next(each for each in iter(posted.get, None) if isinstance(each, CommitDoneEvent)).saved)
    ledger.close()
    rundir.close()
    kept = sorted(path.name for path in (rundir.path / layout.CHECKPOINTS).glob("checkpoint_*"))
    assert kept == ["checkpoint_000000", "checkpoint_000003"]
    assert posted.empty(), "it is complained about once"


def test_reports_go_on_after_the_newest_checkpoint(tmp_path: Path) -> None:
    rundir = open_run(tmp_path / "run", "auto")
    ledger = CheckpointCommitter(rundir, CheckpointConfig())
    posted: queue.Queue[Any] = queue.Queue()
    ledger.open(posted.put)
    assert ledger.next_seq == 0
    ledger.commit(1, a_round(rundir.path, 7))
    ledger.committed(posted.get(timeout=5).saved)
    assert ledger.next_seq == 8
    assert ledger.withdraw(7)
    assert not ledger.withdraw(7)
    assert ledger.next_seq == 0
    ledger.close()
    rundir.close()
    assert not layout.checkpoint(rundir.path, 0).exists()
