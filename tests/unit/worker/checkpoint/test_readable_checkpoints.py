"""Committed checkpoints: the one to resume from, and the list that the run keeps."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from headway.core.messages import CheckpointInfo, CheckpointList, CheckpointQuery, ToWorker
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.worker.checkpoint.readable_checkpoints import UNREAD
from recording import RecordingConnection, session_with, start_message

THERE = (CheckpointInfo("/p/checkpoint_000000", {"loss": 1}, "COMMITTED"),)


def first(path: Path) -> bytes:
    (path / "first").mkdir()
    packed: bytes = cloudpickle.dumps(Checkpoint.from_directory(path / "first"))
    return packed


@pytest.mark.parametrize(("rank", "is_read", "times"), [(0, False, 1), (0, True, 0), (1, False, 0)])
def test_rank_0_is_warned_once_when_it_saves_before_it_has_read_its_checkpoint(
    rank: int, is_read: bool, times: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = start_message(tmp_path, rank=rank, checkpoint=first(tmp_path))
    session = session_with(RecordingConnection(), start)
    if is_read:
        found = session.newest_checkpoint()
        assert found is not None
        assert Path(found.path) == tmp_path / "first"
    with caplog.at_level(logging.WARNING, logger="headway"):
        for _ in range(2):
            session.reports.report({}, Checkpoint.from_dict({}))
    assert [record.getMessage() for record in caplog.records].count(UNREAD) == times


def test_the_list_waits_for_the_last_save_of_this_rank_and_then_for_validations(tmp_path: Path) -> None:
    def answer(message: Any) -> Sequence[ToWorker]:
        return [CheckpointList(index=message.index, found=THERE)] if isinstance(message, CheckpointQuery) else []

    connection = RecordingConnection(answer)
    session = session_with(connection, start_message(tmp_path))
    session.reports.report({}, Checkpoint.from_dict({}))
    assert session.kept_checkpoints(validated=True, timeout_s=None) == THERE
    queries = [message for message in connection.sent if isinstance(message, CheckpointQuery)]
    assert queries == [CheckpointQuery(index=0, after=0), CheckpointQuery(index=1, after=0, validated=True)]


def test_after_the_timeout_the_list_has_the_committed_ones(tmp_path: Path) -> None:
    def answer(message: Any) -> Sequence[ToWorker]:
        late = isinstance(message, CheckpointQuery) and message.after is None
        return [CheckpointList(index=message.index, found=THERE)] if late else []

    connection = RecordingConnection(answer)
    session = session_with(connection, start_message(tmp_path))
    session.reports.report({}, Checkpoint.from_dict({}))
    assert session.kept_checkpoints(validated=False, timeout_s=2.0) == THERE
    assert connection.waits == [2.0]
