"""A thread for work that must not block the controller's loop. Jobs run in order, one at a time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class _Job:
    name: str
    work: Callable[[], None]


class JobThread:
    """A thread that starts with its first job. Jobs must catch their own exceptions."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._running: tuple[str, float] | None = None
        self._mentioned: tuple[str, float] | None = None

    def do(self, name: str, work: Callable[[], None]) -> None:
        self._jobs.put(_Job(name, work))
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
            self._thread.start()

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._running = job.name, time.monotonic()
            job.work()
            self._running = None

    def slow(self, after_s: float) -> str | None:
        """Return the name of a job that has been running for at least ``after_s``, once per job."""
        running = self._running
        if running is None or running == self._mentioned or time.monotonic() - running[1] < after_s:
            return None
        self._mentioned = running
        return running[0]

    def wait_s(self, after_s: float) -> float | None:
        """Return the seconds until the running job has been running for ``after_s``."""
        running = self._running
        if running is None or running == self._mentioned:
            return None
        return max(0.0, running[1] + after_s - time.monotonic())

    def close(self, timeout_s: float | None = None) -> bool:
        """Wait until all jobs are done; return False if the time limit expires first."""
        if self._thread is None:
            return True
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
