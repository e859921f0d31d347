"""What looking at a run means to those who run it: a few calls that must be cheap and can change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.core.messages import Report


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """What can be seen of a run at a glance."""

    state: str
    attempt: int
    num_workers: int
    num_reports: int
    newest: Report | None


class RunObserver(Protocol):
    def say(self, text: str, *, level: str = "INFO") -> None:
        """Something happened, in words."""

    def follow(self, num_workers: int) -> None:
        """An attempt begins: so many workers will write logs."""

    def tick(self, glance: RunSnapshot) -> float | None:
        """Called after every batch of events; seconds until it wants to be called again if nothing happens."""


class RunObservers:
    """Several of them as one."""

    def __init__(self, watchers: Sequence[RunObserver]) -> None:
        self._watchers = watchers

    def say(self, text: str, *, level: str = "INFO") -> None:
        for watcher in self._watchers:
            watcher.say(text, level=level)

    def follow(self, num_workers: int) -> None:
        for watcher in self._watchers:
            watcher.follow(num_workers)

    def tick(self, glance: RunSnapshot) -> float | None:
        waits = [watcher.tick(glance) for watcher in self._watchers]
        return min((wait for wait in waits if wait is not None), default=None)
