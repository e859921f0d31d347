"""The inbox of an engine: events from other threads, and the wake-up event, which workers also signal."""

from __future__ import annotations

import contextlib
import os
import queue
import threading


class Inbox:
    """The queue of events. Any thread may call ``post`` at any time; all else is for the thread that pumps."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._wake_up: int | None = None
        self._guard = threading.RLock()  # prevents writing to an eventfd that is being closed

    @property
    def is_open(self) -> bool:
        return self._wake_up is not None

    def fileno(self) -> int:
        """Return an eventfd, which is readable if an event was posted or a worker sent more than metrics."""
        assert self._wake_up is not None
        return self._wake_up

    def open(self) -> None:
        self._wake_up = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # set, since events may already be queued

    def post(self, event: object) -> None:
        self._events.put(event)
        with self._guard:
            if self._wake_up is not None:
                os.eventfd_write(self._wake_up, 1)

    def take(self) -> list[object]:
        """Return all posted events and reset the wake-up event."""
        os.eventfd_read(self.fileno())
        return self.discard()

    def discard(self) -> list[object]:
        """Remove all posted events and return them."""
        events = []
        with contextlib.suppress(queue.Empty):
            while True:
                events.append(self._events.get_nowait())
        return events

    def close(self) -> None:
        with self._guard:
            wake_up, self._wake_up = self._wake_up, None
            if wake_up is not None:
                os.close(wake_up)
