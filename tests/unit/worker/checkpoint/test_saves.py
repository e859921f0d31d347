"""The saves of a rank: the limit of uncommitted saves, and the messages about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.core.config import CheckpointUploadMode
from headway.core.messages import CheckpointCommitted, FilesDiscarded, FilesStaged, Report, SaveStarted
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.worker.checkpoint.options import SaveOptions
from headway.worker.checkpoint.saves import MAX_UNCOMMITTED, THROTTLE_S
from headway.worker.session import COMMIT_WAIT_S, Session
from recording import RecordingConnection, session_with, start_message


def begin(path: Path) -> tuple[RecordingConnection, Session]:
    connection = RecordingConnection()
    return connection, session_with(connection, start_message(path))


def save(session: Session, **options: Any) -> None:
    session.reports.report({}, Checkpoint.from_dict({}), SaveOptions(**options))


def test_the_controller_hears_of_a_save_before_its_files_are_staged(tmp_path: Path) -> None:
    connection, session = begin(tmp_path)
    session.progress.taken["train"] = 12
    save(session, place="epoch 3")
    assert connection.sent[0] == SaveStarted(taken=(("train", 12),), place="epoch 3")


def test_a_rank_that_saves_faster_than_storage_commits_is_held_back(tmp_path: Path) -> None:
    connection, session = begin(tmp_path)
    for _ in range(MAX_UNCOMMITTED):
        save(session)
    assert connection.waits == []
    save(session)
    assert connection.waits == [THROTTLE_S]
    session.receive(CheckpointCommitted(seq=1, path=str(tmp_path / "checkpoints/checkpoint_000001")))
    save(session)
    assert connection.waits == [THROTTLE_S], "older ones will not be committed any more"


@pytest.mark.parametrize("message", [FilesDiscarded(seq=0), CheckpointCommitted(seq=0, path="/p/checkpoint_000000")])
def test_no_wait_for_what_was_committed_or_discarded(message: Any, tmp_path: Path) -> None:
    connection, session = begin(tmp_path)
    save(session)
    session.newest_checkpoint()
    assert connection.waits == [COMMIT_WAIT_S]
    session.receive(message)
    session.newest_checkpoint()
    assert connection.waits == [COMMIT_WAIT_S]


def test_the_newest_checkpoint_is_the_committed_one_that_this_rank_had_a_part_in(tmp_path: Path) -> None:
    _, session = begin(tmp_path)
    session.receive(CheckpointCommitted(seq=0, path=str(tmp_path / "of_others")))
    assert session.newest_checkpoint() is None
    save(session)
    session.receive(CheckpointCommitted(seq=0, path=str(tmp_path / "ours")))
    found = session.newest_checkpoint()
    assert found is not None
    assert Path(found.path).name == "ours"


def test_files_that_are_staged_before_their_report_is_sent_are_announced_after_it(tmp_path: Path) -> None:
    connection, session = begin(tmp_path)  # here, background saves run immediately
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.txt").write_text("a")
    checkpoint = Checkpoint.from_directory(tmp_path / "mine")
    options = SaveOptions(mode=CheckpointUploadMode.ASYNC, delete_local=False)
    session.reports.report({}, checkpoint, options)
    assert connection.kinds == ["SaveStarted", "Report", "FilesStaged"]
    assert connection.sent[-1] == FilesStaged(seq=0)
    [report] = [message for message in connection.sent if isinstance(message, Report)]
    assert report.pending
    assert not report.staged
