"""Queries: answered once the rank's own checkpoint is committed, and never blocked by one that cannot come."""

from __future__ import annotations

from typing import Any

from headway.control.machine.checkpoint_queries import CheckpointQueries
from headway.core.messages import CheckpointQuery


def asked(*questions: CheckpointQuery, rank: int = 0) -> CheckpointQueries:
    found = CheckpointQueries()
    for question in questions:
        found = found.ask(rank, question)
    return found


def indices(questions: CheckpointQueries) -> list[int]:
    return [question.index for _, question in questions.open]


def settled(questions: CheckpointQueries, **facts: Any) -> list[int]:
    return indices(questions.settle(**{"closed": 0, "answered": -1, "quiet": True, "validating": False, **facts})[1])


def test_a_query_of_a_rank_without_saves_is_answered_at_once() -> None:
    assert settled(asked(CheckpointQuery(index=0))) == [0]
    assert settled(asked(CheckpointQuery(index=0, validated=True))) == [0]


def test_an_answer_waits_for_the_round_and_for_storage() -> None:
    question = asked(CheckpointQuery(index=0, after=3))
    assert settled(question, closed=3) == []
    assert settled(question, closed=4, quiet=False, answered=2) == []
    assert settled(question, closed=4, quiet=False, answered=3) == [0]
    assert settled(question, closed=4) == [0], "it was dropped, or is there: storage owes us nothing"


def test_a_query_for_validated_checkpoints_waits_for_every_validation() -> None:
    question = asked(CheckpointQuery(index=0, validated=True), CheckpointQuery(index=1))
    assert settled(question, validating=True) == [1]
    assert settled(question) == [0, 1]


def test_a_repeated_query_replaces_the_first() -> None:
    question = asked(CheckpointQuery(index=0, after=9, validated=True), CheckpointQuery(index=0))
    assert settled(question, validating=True) == [0]
    both = question.ask(1, CheckpointQuery(index=0, after=9))
    left, now = both.settle(closed=0, answered=-1, quiet=True, validating=False)
    assert [rank for rank, _ in now.open] == [0]
    assert [rank for rank, _ in left.open] == [1]
