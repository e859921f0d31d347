"""Timers: one per type of event, and files that wait for absent ranks."""

from __future__ import annotations

import pytest

from headway.control import timers
from headway.control.machine.events import DeadlineEvent, OverdueEvent, SaveDueEvent
from headway.control.timers import LONG_OVERDUE_S, OVERDUE_S, Timers


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timers, "time", clock)
    return clock


def test_a_timer_fires_once_and_not_before_its_time(clock: Clock) -> None:
    each = Timers()
    each.set(5, DeadlineEvent(1))
    assert each.waits() == [5]
    assert each.due() == []
    clock.now += 5
    assert each.due() == [DeadlineEvent(1)]
    clock.now += 5
    assert (each.due(), each.waits()) == ([], [])


def test_a_timer_replaces_the_one_of_its_type_and_none_clears_it(clock: Clock) -> None:
    each = Timers()
    each.set(5, DeadlineEvent(1))
    each.set(9, DeadlineEvent(2))
    assert each.waits() == [9]
    each.set(None, DeadlineEvent(2))
    assert each.waits() == []


def test_a_timer_that_shortens_leaves_an_earlier_one(clock: Clock) -> None:
    each = Timers()
    each.set(9, DeadlineEvent(1), shortens=True)
    each.set(5, DeadlineEvent(1), shortens=True)
    each.set(300, DeadlineEvent(1), shortens=True)
    assert each.waits() == [5]


def test_a_save_that_is_due_does_not_wait_for_the_other_timers(clock: Clock) -> None:
    each = Timers()
    each.set(5, SaveDueEvent(1))
    assert each.save_is_due() is None
    clock.now += 5
    assert each.save_is_due() == SaveDueEvent(1)
    assert each.save_is_due() is None


def test_files_that_wait_are_overdue_again_and_again_and_in_the_end_long(clock: Clock) -> None:
    each = Timers()
    each.watch_files(1, 7)
    clock.now += OVERDUE_S
    assert each.due() == [OverdueEvent(1, 7)]
    each.watch_files(1, 7)
    clock.now += LONG_OVERDUE_S
    assert each.due() == [OverdueEvent(1, 7)]
    clock.now += OVERDUE_S
    assert each.due() == [OverdueEvent(1, 7, long=True)]


def test_another_round_is_given_time_of_its_own(clock: Clock) -> None:
    each = Timers()
    each.watch_files(1, 7)
    clock.now += OVERDUE_S / 2
    each.watch_files(1, 8)
    assert each.waits() == [OVERDUE_S]
    each.watch_files(1, None)
    assert each.waits() == []
