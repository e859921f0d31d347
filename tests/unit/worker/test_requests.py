"""Requests: how they are numbered, answered, replaced after a timeout, and shown in the heartbeat."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from headway.core.errors import EngineError
from headway.core.messages import (
    BarrierArrival,
    BarrierRelease,
    CheckpointInfo,
    CheckpointList,
    CheckpointQuery,
    ToWorker,
)
from headway.worker.heartbeat import RankProgress
from headway.worker.requests import PendingRequests
from recording import RecordingConnection


def connected(connection: RecordingConnection) -> PendingRequests:
    requests = PendingRequests(connection, RankProgress())
    connection.receive = requests.on_answer
    return requests


def echo(message: Any) -> Sequence[ToWorker]:
    match message:
        case BarrierArrival(index=index, data=data):
            return [BarrierRelease(index=index, data=data)]
        case CheckpointQuery(index=index):
            return [CheckpointList(index=index, found=())]
        case _:
            return []


def arrive(requests: PendingRequests, data: bytes) -> bytes:
    return requests.ask(
        BarrierRelease, lambda index: BarrierArrival(index=index, kind="barrier()", data=data), "barrier"
    ).data


def test_each_request_gets_its_own_answer_and_each_type_of_answer_its_own_numbers() -> None:
    connection = RecordingConnection(echo)
    requests = connected(connection)
    assert [arrive(requests, b"a"), arrive(requests, b"b")] == [b"a", b"b"]
    requests.ask(CheckpointList, lambda index: CheckpointQuery(index=index), "checkpoints")
    assert [message.index for message in connection.sent] == [0, 1, 0]


def test_after_the_timeout_another_request_replaces_the_first_under_the_same_number() -> None:
    there = (CheckpointInfo("/p", {}, "COMMITTED"),)

    def answer(message: CheckpointQuery) -> Sequence[ToWorker]:
        return [] if message.validated else [CheckpointList(index=message.index, found=there)] * 2

    connection = RecordingConnection(answer)  # type: ignore[arg-type]
    requests = connected(connection)
    found = requests.ask(
        CheckpointList,
        lambda index: CheckpointQuery(index=index, validated=True),
        "validations",
        timeout_s=3.0,
        at_timeout=lambda index: CheckpointQuery(index=index),
    )
    assert found.found == there
    assert connection.sent == [CheckpointQuery(index=0, validated=True), CheckpointQuery(index=0)]
    assert connection.waits == [3.0]


def test_a_request_without_an_answer_is_named() -> None:
    requests = connected(RecordingConnection())
    with pytest.raises(EngineError, match=r"did not answer a request \(barrier\)"):
        arrive(requests, b"")


def test_an_answer_without_a_waiting_request_is_dropped() -> None:
    connection = RecordingConnection()
    requests = connected(connection)
    requests.on_answer(BarrierRelease(index=0, data=b"early"))
    connection.answer = echo
    assert arrive(requests, b"mine") == b"mine"


def test_the_heartbeat_says_what_the_main_thread_waits_in() -> None:
    progress = RankProgress()
    seen: list[Any] = []

    def done() -> bool:
        seen.append(progress.heartbeat().wait)
        return True

    requests = PendingRequests(RecordingConnection(), progress)
    requests.wait("report", done)
    thread = threading.Thread(target=requests.wait, args=("upload", done))
    thread.start()
    thread.join()
    operations = [wait and wait.operation for wait in seen]
    assert list(dict.fromkeys(operations)) == ["report", None], "another thread is not the rank"
    assert progress.heartbeat().wait is None
