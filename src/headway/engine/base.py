"""The contract of an engine.

An engine delivers processes and their exits; it decides nothing. One thread drives it, the controller's: events reach
the controller only from inside :meth:`Engine.pump`, through the ``deliver`` that :meth:`Engine.open` was given.
``post`` and ``resources`` may be used by other threads. Besides messages of workers an engine delivers
``ResourcesGrantedEvent``, ``ResourcesAwaitedEvent``, ``CapacityEvent`` and ``WorkersPreemptedEvent``
(:mod:`headway.core.messages`).

    resources.check() ─▶ resources.request() ─▶ open() ─▶ ResourcesGrantedEvent ─▶ launch() ─▶ … ─▶ close()

- Workers are addressed by their index in the launch, 0 … n-1; ranks are the controller's business.
- Every launched worker gets exactly one ``WorkerExited``, after everything else it sent.
- Messages to a worker that has exited are dropped.

``headway.testing.contracts.engine`` holds the tests that every engine passes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headway.core.messages import ToWorker
from headway.engine.process_stats import OutsideStacks, ProcessStats

Deliver = Callable[[Sequence[object]], None]

WORKER = "headway.worker.main"


class Resources(Protocol):
    """The resources of one run's workers. Once granted, they are held until the engine is closed."""

    def check(self) -> None:
        """Raise ConfigError if even the fewest workers can never run here."""

    def request(self, owner: str) -> None:
        """Join the queue for what the workers need; a granted request is confirmed again.

        The engine delivers ``ResourcesGrantedEvent`` when all of it is held, before that ``ResourcesAwaitedEvent`` if
        the run has to wait. ``owner`` is the run's name, for others who wait.
        """

    def num_available_workers(self) -> int:
        """How many workers can run now, at most ``max_workers``; EngineError if that is less than ``min_workers``.

        Only after the request was granted.
        """

    def limit(self, num_workers: int | None) -> None:
        """Limit the number of workers, whatever is available; the engine delivers ``CapacityEvent``."""

    def threads_per_worker(self, num_workers: int) -> int | None:
        """How many CPU threads each of ``num_workers`` workers should use; None if the user decides."""


class OneShotProcess(Protocol):
    """A process beside the workers that answers one question."""

    def ask(self, question: object, timeout_s: float | None) -> object:
        """Start the process, send it the question and wait for the answer.

        Args:
            question: A message for the process.
            timeout_s: How long it may take from when the process is ready; None for any time.

        Returns:
            The answer; or WorkerExited, TimedOut or Cancelled. The process has ended or is being killed.
        """

    def cancel(self) -> None:
        """Kill the process, or the one that would be started; ``ask`` returns Cancelled. From any thread."""

    def close(self) -> None:
        """Release what is held. ``cancel`` may still be called."""


class TimedOut:
    """The question was not answered in time; the process was killed."""


class Cancelled:
    """The question was withdrawn; the process was killed."""


class Engine(Protocol):
    @property
    def resources(self) -> Resources:
        """What the run needs and holds."""

    @property
    def in_process(self) -> bool:
        """Whether the only worker is this process: its function runs in the thread that calls ``pump``."""

    @property
    def in_user_code(self) -> bool:
        """Whether this process executes the training function at this moment: then a Ctrl-C is for that function."""

    def open(self, deliver: Deliver) -> None:
        """Get ready to launch; from now on ``pump`` delivers events."""

    def launch(self, attempt: int, num_workers: int) -> None:
        """Start workers; each will send Ready. Those of an earlier launch that have not exited are killed.

        Raises:
            EngineError: The launch cannot be attempted.
        """

    def send(self, index: int, message: ToWorker) -> None:
        """Send a message to one worker, in order, without waiting for it."""

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in every worker, as Ctrl-C does."""

    def kill(self) -> None:
        """Kill every process of the latest launch, with everything it has started."""

    def process_stats(self, index: int) -> ProcessStats | None:
        """The system's figures of this worker's process; None if they are unknown or it has ended."""

    def outside_stacks(self, index: int) -> OutsideStacks | None:
        """The stacks of a worker that cannot answer; None if there is no way to get them."""

    def one_shot_process(self, entry: str) -> OneShotProcess:
        """A process for one question, to be used by any one thread.

        Args:
            entry: The module whose ``main(connection)`` it runs; ``connection`` is a connected socket.
        """

    def pump(self, timeout_s: float | None) -> None:
        """Deliver pending events; wait for the first one, at most ``timeout_s``."""

    def post(self, event: object) -> None:
        """Have this event delivered by ``pump``. From any thread, also before ``open``."""

    def close(self) -> None:
        """End all processes and release all resources, also of an engine that was never opened."""


def worker_entry(name: str) -> Any:
    """A function of the worker's module, found by name: the engine does not depend on what it starts."""
    return getattr(importlib.import_module(WORKER), name)
