"""The workers of an attempt: the engine's indices become ranks."""

from __future__ import annotations

from typing import Any

from headway.control.attempt import Attempt
from headway.core.messages import BatchCount, ExitAllowed, FromWorker, Heartbeat, Ready


class Engine:
    """An engine that records what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []

    def send(self, index: int, message: Any) -> None:
        self.sent.append((index, message))


def ready_attempt(*gpus: str) -> tuple[Attempt, Engine]:
    engine = Engine()
    attempt = Attempt(engine)  # type: ignore[arg-type]
    for index, gpu in enumerate(gpus):
        assert attempt.ranked(FromWorker(1, index, Ready(host="here", pid=index, gpus=(gpu,)))) is None
    attempt.assign_ranks(None)
    return attempt, engine


def test_messages_have_ranks_once_ranks_are_assigned() -> None:
    attempt, engine = ready_attempt("1", "0")
    assert attempt.ranked(FromWorker(1, 0, Heartbeat())) == FromWorker(1, 1, Heartbeat())
    attempt.send(0, ExitAllowed())
    assert engine.sent == [(1, ExitAllowed())]
    assert attempt.ranks_of([0]) == {1}
    assert attempt.by_host(frozenset({0, 1})) == {"here": [0, 1]}


def test_another_attempt_knows_nothing_of_the_one_before() -> None:
    attempt, _ = ready_attempt("0", "1")
    attempt.values[0] = b""
    assert attempt.has_ranks
    attempt.begin()
    assert not attempt.has_ranks
    assert (attempt.ranks_of([0]), attempt.values, attempt.starting(2)) == (frozenset(), {}, [0, 1])


def test_every_rank_hears_how_many_batches_all_have() -> None:
    attempt, engine = ready_attempt("0", "1")
    count = BatchCount(dataset="train", epoch=0, count=3, ended=False)
    attempt.count_batches(0, count)
    assert engine.sent == []
    attempt.count_batches(1, count)
    assert [index for index, _ in engine.sent] == [0, 1]
