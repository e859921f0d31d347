"""What happens after a while: the controller's alarm clocks. Of each kind of event there is one."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from headway.control.machine.events import Answer, BeginEvent, OverdueEvent, SaveDueEvent

OVERDUE_S = 2.0  # how long files wait for ranks that never gave any
LONG_OVERDUE_S = 60.0  # and for those that did in an earlier attempt, and do not in this one


@dataclass(frozen=True, slots=True)
class SlowStartEvent:
    """The workers of this attempt take their time to come up."""

    attempt: int


@dataclass(frozen=True, slots=True)
class SlowExitEvent:
    """Workers of this attempt take their time to end, though their functions have returned."""

    attempt: int


Alarm = Answer | BeginEvent | SlowStartEvent | SlowExitEvent


class Timers:
    def __init__(self) -> None:
        self._set: dict[type, tuple[float, Alarm]] = {}
        self._waiting: tuple[int, int] | None = None  # the round whose files are being waited with
        self._since = 0.0

    def set(self, after_s: float | None, event: Alarm) -> None:
        """None takes it back."""
        if after_s is None:
            self._set.pop(type(event), None)
        else:
            self._set[type(event)] = (time.monotonic() + after_s, event)

    def waits(self) -> list[float]:
        """How long each of them will wait."""
        return [max(0.0, when - time.monotonic()) for when, _ in self._set.values()]

    def rung(self) -> list[Alarm]:
        """Those that ring now."""
        now = time.monotonic()
        due = [event for when, event in self._set.values() if when <= now]
        for event in due:
            del self._set[type(event)]
            if isinstance(event, OverdueEvent) and not event.long:
                self.set(OVERDUE_S, replace(event, long=now - self._since >= LONG_OVERDUE_S))
        return due

    def save_is_due(self) -> SaveDueEvent | None:
        """The one that does not wait for its turn: an inline function lets no clock ring."""
        when, event = self._set.get(SaveDueEvent, (0.0, None))
        if event is None or when > time.monotonic():
            return None
        del self._set[SaveDueEvent]
        assert isinstance(event, SaveDueEvent)
        return event

    def watch_files(self, attempt: int, seq: int | None) -> None:
        """Files of a round that stays open wait for ranks that may never come; not for ever."""
        if seq is None:
            self._set.pop(OverdueEvent, None)
            self._waiting = None
        elif self._waiting != (attempt, seq):
            self._waiting, self._since = (attempt, seq), time.monotonic()
            self.set(OVERDUE_S, OverdueEvent(attempt, seq))
