"""The interface through which the console and the run handle follow a run. Its methods must be fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.core.messages import Report


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The state of a run for the status line."""

    state: str
    attempt: int
    num_workers: int
    num_reports: int
    newest: Report | None


class RunObserver(Protocol):
    def say(self, text: str, *, level: str = "INFO") -> None:
        """Log an event of the run."""

    def follow(self, num_workers: int) -> None:
        """Called when an attempt starts with this number of workers, which will write logs."""

    def tick(self, snapshot: RunSnapshot) -> float | None:
        """Called after every batch of events; returns the seconds until the next call if no events arrive."""


class RunObservers:
    """Several observers combined into one."""

    def __init__(self, observers: Sequence[RunObserver]) -> None:
        self._observers = observers

    def say(self, text: str, *, level: str = "INFO") -> None:
        for observer in self._observers:
            observer.say(text, level=level)

    def follow(self, num_workers: int) -> None:
        for observer in self._observers:
            observer.follow(num_workers)

    def tick(self, snapshot: RunSnapshot) -> float | None:
        waits = [observer.tick(snapshot) for observer in self._observers]
        return min((wait for wait in waits if wait is not None), default=None)
