"""Wording of numbers, ranks and exits."""

from __future__ import annotations

from headway.core import phrases
from headway.core.messages import WorkerExited


def test_numbers_in_words() -> None:
    assert phrases.ranks([3]) == "rank 3"
    assert phrases.ranks([1, 0]) == "ranks 0 and 1"
    assert phrases.ranks([0, 1, 2, 3, 6, 7]) == "ranks 0-3, 6 and 7"
    assert phrases.ranks([0, 1, 2]) == "ranks 0-2"
    assert phrases.ranks_are([3]) == "rank 3 is"
    assert phrases.ranks_are([1, 0]) == "ranks 0 and 1 are"
    assert phrases.duration(2.345) == "2.3 s"
    assert phrases.duration(125) == "2 min 05 s"
    assert phrases.duration(7265) == "2 h 01 min"
    assert phrases.size(999) == "999 B"
    assert phrases.size(1536) == "1.5 KB"
    assert phrases.size(5e15) == "5000.0 TB"
    assert phrases.count(1, "worker") == "1 worker"
    assert phrases.count(1500, "report") == "1,500 reports"
    assert phrases.metrics({"a": 0.123456, "b": "x" * 30, "c": [1], "d": 2}) == f"a=0.1235 b={'x' * 19}… d=2"


def test_several_processes_that_ended_for_one_reason_are_plural() -> None:
    exited = WorkerExited(reason="was killed with the process that forks workers")
    assert phrases.death(exited) == "was killed with the process that forks workers"
    assert phrases.death(exited, several=True) == "were killed with the process that forks workers"
