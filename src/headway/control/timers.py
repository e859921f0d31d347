"""The controller's timers: at most one for each type of event."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from headway.control.machine.events import Answer, BeginEvent, OverdueEvent, SaveDueEvent

OVERDUE_S = 2.0  # time that files wait for ranks that have never given any
LONG_OVERDUE_S = 60.0  # time that files wait for ranks that gave some in earlier attempts, but not in this one


@dataclass(frozen=True, slots=True)
class SlowStartEvent:
    """The workers of this attempt are slow to start."""

    attempt: int


@dataclass(frozen=True, slots=True)
class SlowExitEvent:
    """Workers of this attempt are slow to exit although their functions have returned."""

    attempt: int


Alarm = Answer | BeginEvent | SlowStartEvent | SlowExitEvent


class Timers:
    def __init__(self) -> None:
        self._set: dict[type, tuple[float, Alarm]] = {}
        self._waiting: tuple[int, int] | None = None  # attempt and number of the round whose files are waiting
        self._since = 0.0

    def set(self, after_s: float | None, event: Alarm, *, shortens: bool = False) -> None:
        """Set the timer of this type of event; None clears it. ``shortens``: unless it is set and fires earlier."""
        if after_s is None:
            self._set.pop(type(event), None)
            return
        when = time.monotonic() + after_s
        known = self._set.get(type(event))
        if not shortens or known is None or when < known[0]:
            self._set[type(event)] = (when, event)

    def waits(self) -> list[float]:
        """Return the seconds until each timer fires."""
        return [max(0.0, when - time.monotonic()) for when, _ in self._set.values()]

    def due(self) -> list[Alarm]:
        """Return the events that are due, and clear their timers."""
        now = time.monotonic()
        fired = [event for when, event in self._set.values() if when <= now]
        for event in fired:
            del self._set[type(event)]
            if isinstance(event, OverdueEvent) and not event.long:
                self.set(OVERDUE_S, replace(event, long=now - self._since >= LONG_OVERDUE_S))
        return fired

    def save_is_due(self) -> SaveDueEvent | None:
        """Return the SaveDueEvent if it is due: unlike other timers, it also fires while an inline function runs."""
        when, event = self._set.get(SaveDueEvent, (0.0, None))
        if event is None or when > time.monotonic():
            return None
        del self._set[SaveDueEvent]
        assert isinstance(event, SaveDueEvent)
        return event

    def watch_files(self, attempt: int, seq: int | None) -> None:
        """Limit how long the files of an open round wait for ranks that may never report it."""
        if seq is None:
            self._set.pop(OverdueEvent, None)
            self._waiting = None
        elif self._waiting != (attempt, seq):
            self._waiting, self._since = (attempt, seq), time.monotonic()
            self.set(OVERDUE_S, OverdueEvent(attempt, seq))
