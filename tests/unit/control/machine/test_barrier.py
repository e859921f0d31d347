"""Barriers and broadcasts."""

from __future__ import annotations

from headway.control.machine.barrier import BarrierBroken, BarrierComplete, Barriers
from headway.core.messages import BarrierArrival

BARRIER = BarrierArrival(index=0, kind="barrier()")


def test_all_ranks_receive_rank_zeros_data_when_the_last_one_arrives() -> None:
    meetings, verdict = Barriers(2).arrive(1, BarrierArrival(index=0, kind="b", data=b"one"))
    assert verdict is None
    meetings, verdict = meetings.arrive(0, BarrierArrival(index=0, kind="b", data=b"zero"))
    assert verdict == BarrierComplete(0, b"zero")
    assert meetings == Barriers(2), "and the next one may begin"


def test_a_barrier_breaks_when_a_rank_has_returned() -> None:
    for first_ends in (True, False):
        meetings = Barriers(2)
        if first_ends:
            meetings, _ = meetings.end(1)
            meetings, verdict = meetings.arrive(0, BARRIER)
        else:
            meetings, _ = meetings.arrive(0, BARRIER)
            meetings, verdict = meetings.end(1)
        assert isinstance(verdict, BarrierBroken)
        assert "rank 0 waits in barrier(), which rank 1 will never reach" in verdict.reason


def test_different_barriers_are_named() -> None:
    meetings, _ = Barriers(2).arrive(0, BARRIER)
    _, verdict = meetings.arrive(1, BarrierArrival(index=0, kind="broadcast()"))
    assert verdict == BarrierBroken("rank 0 waits in barrier() while rank 1 waits in broadcast()")
