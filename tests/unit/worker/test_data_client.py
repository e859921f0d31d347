"""Datasets of a rank: reports contain positions, messages contain statistics, and ranks agree on their batches."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headway.core.messages import BatchCount, CommonBatchCount, Report
from headway.worker.data_client import DataClient
from headway.worker.heartbeat import RankProgress
from headway.worker.requests import PendingRequests
from recording import RecordingConnection, session_with, start_message


@dataclass
class Shard:
    at: dict[str, Any] | None = None

    def position(self) -> dict[str, Any] | None:
        return self.at

    def stats(self) -> None:
        return None


def test_every_report_has_the_positions_of_the_datasets_that_have_one(tmp_path: Any) -> None:
    connection = RecordingConnection()
    session = session_with(connection, start_message(tmp_path))
    train, unread = Shard({"rows": 1}), Shard()
    session.data.add("train", train)
    session.data.add("unread", unread)
    session.reports.report({})
    train.at = {"rows": 2}
    session.reports.report({})
    sent = [json.loads(message.cursor) for message in connection.sent if isinstance(message, Report)]
    assert sent == [{"train": {"rows": 1}}, {"train": {"rows": 2}}]


def test_without_statistics_nothing_is_sent() -> None:
    connection = RecordingConnection()
    data = DataClient(PendingRequests(connection, RankProgress()), {})
    data.add("train", Shard())
    data.send_stats()
    assert connection.sent == []


def test_a_batch_is_taken_when_every_rank_has_it() -> None:
    counts = {1: CommonBatchCount(dataset="train", epoch=0, count=1, last=False)}
    last = CommonBatchCount(dataset="train", epoch=0, count=2, last=True)
    connection = RecordingConnection(
        lambda message: [counts.get(message.count, last)] if isinstance(message, BatchCount) else []
    )
    data = DataClient(PendingRequests(connection, RankProgress()), {})
    connection.receive = data.on_common_batch_count
    data.announce_batches("train", 0, 1, ended=False)
    assert data.all_have_batch("train", 0, 0)
    data.announce_batches("train", 0, 3, ended=True)
    assert data.all_have_batch("train", 0, 1)
    assert not data.all_have_batch("train", 0, 2), "another rank has no more"
