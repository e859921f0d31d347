"""The contract of an engine.

An engine delivers processes and deaths; it decides nothing. It is driven by one thread, the controller's: events
reach the controller only from inside :meth:`Engine.pump`, by the ``deliver`` that it was opened with. ``post`` is
the one entry for other threads. Beside what workers say it delivers ``WorkersPreemptedEvent`` and ``CapacityEvent``
(:mod:`headway.core.messages`).

- Workers are addressed by their index in the launch, 0 … n-1; ranks are the controller's business.
- Every launched worker gets exactly one ``Exited``, after everything else it said.
- Messages to a worker that has left are dropped.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headway.core.config import ScalingConfig
from headway.core.messages import ToWorker
from headway.engine.process_stats import OutsideStacks, ProcessStats

Deliver = Callable[[Sequence[Any]], None]

WORKER = "headway.worker.main"


class Engine(Protocol):
    name: str

    def check(self, scaling: ScalingConfig) -> int:
        """How many workers can run now, at most ``max_workers``; ConfigError where ``min_workers`` never can.

        What they need for themselves (GPUs) is theirs from now on, until :meth:`close`; EngineError where too little of
        it is free.
        """

    def threads_per_worker(self, num_workers: int) -> int | None:
        """How many CPU threads each of so many workers should use; None where that is not ours to say."""

    def open(self, deliver: Deliver) -> None:
        """Get ready to launch; from now on events may come."""

    def launch(self, attempt: int, num_workers: int) -> None:
        """Bring up workers that will each say Ready. EngineError where that cannot even be tried."""

    def send(self, index: int, message: ToWorker) -> None: ...

    def interrupt(self) -> None:
        """Ask the Python of every worker to stop, as Ctrl-C does."""

    def kill(self) -> None:
        """End every process of the latest launch, with everything it started."""

    def vital(self, index: int) -> ProcessStats | None:
        """What the system says of this worker's process; None where that cannot be known, or it is gone."""

    def outside(self, index: int) -> OutsideStacks | None:
        """Its stacks as they can be had without it; None where they cannot."""

    def pump(self, timeout_s: float | None) -> None:
        """Deliver what has happened; wait for something to happen, at most so long."""

    def post(self, event: object) -> None:
        """Have this event delivered soon. The only method that other threads may call."""

    def close(self) -> None:
        """Let nothing live on. Also called for an engine that was checked and never opened."""


def worker_entry(name: str) -> Any:
    """A function of the worker's module, found by name: the engine does not depend on what it starts."""
    return getattr(importlib.import_module(WORKER), name)
