"""Events that engines and users put into the controller's inbox."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.messages.to_controller import ToController


@dataclass(frozen=True, slots=True)
class FromWorker:
    """A message with its sender, added by the engine. ``attempt`` tells late messages of earlier attempts apart."""

    attempt: int
    rank: int
    message: ToController


@dataclass(frozen=True, slots=True)
class WorkersPreemptedEvent:
    """The engine says that these workers (by index) will be taken away, in so many seconds if that is known."""

    attempt: int
    indices: tuple[int, ...]
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class CapacityEvent:
    """The engine says that so many workers of this run's kind could run now."""

    num_workers: int


@dataclass(frozen=True, slots=True)
class ResourcesGrantedEvent:
    """The engine says that the run holds what it has asked for: workers can be launched."""


@dataclass(frozen=True, slots=True)
class ResourcesAwaitedEvent:
    """The engine says that the run waits in the queue; ``text`` says for what, and who holds it."""

    text: str


@dataclass(frozen=True, slots=True)
class AbortEvent:
    """The user ends the run now, as ABORTED. A second one kills the workers."""


@dataclass(frozen=True, slots=True)
class StopEvent:
    """The user ends the run soon, as STOPPED: what was reached is kept."""


@dataclass(frozen=True, slots=True)
class TerminateEvent:
    """This program received SIGTERM: save what can be saved and end as PREEMPTED. A second one ends it at once."""
