"""Events that engines and users put into the controller's inbox."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.messages.to_controller import ToController


@dataclass(frozen=True, slots=True)
class FromWorker:
    """A message with its sender, added by the engine. ``attempt`` identifies late messages of earlier attempts."""

    attempt: int
    rank: int
    message: ToController


@dataclass(frozen=True, slots=True)
class WorkersPreemptedEvent:
    """Sent by the engine when these workers (by index) will be preempted.

    ``deadline_s``: the number of seconds until then, if known.
    """

    attempt: int
    indices: tuple[int, ...]
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class CapacityEvent:
    """Sent by the engine to report how many workers with this run's resources could run now."""

    num_workers: int


@dataclass(frozen=True, slots=True)
class ResourcesGrantedEvent:
    """Sent by the engine when the run holds the resources that it requested, so that workers can be launched."""


@dataclass(frozen=True, slots=True)
class ResourcesAwaitedEvent:
    """Sent by the engine when the run waits in the queue; ``text`` says for what, and which runs hold it."""

    text: str


@dataclass(frozen=True, slots=True)
class AbortEvent:
    """The user ends the run now, as ABORTED. A second event kills the workers."""


@dataclass(frozen=True, slots=True)
class StopEvent:
    """The user ends the run soon, as STOPPED; its results so far are kept."""


@dataclass(frozen=True, slots=True)
class TerminateEvent:
    """This program received SIGTERM. The run saves a checkpoint if it can and ends as PREEMPTED.

    A second event ends it immediately.
    """
