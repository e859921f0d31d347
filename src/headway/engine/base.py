"""The contract of an engine.

An engine starts processes and reports their exits; it makes no decisions. The controller's thread drives it: events
reach the controller only from inside :meth:`Engine.pump`, through the ``deliver`` passed to :meth:`Engine.open`.
Other threads may use ``post`` and ``resources``. In addition to workers' messages, an engine delivers
``ResourcesGrantedEvent``, ``ResourcesAwaitedEvent``, ``CapacityEvent`` and ``WorkersPreemptedEvent``
(:mod:`headway.core.messages`).

    resources.check() ─▶ resources.request() ─▶ open() ─▶ ResourcesGrantedEvent ─▶ launch() ─▶ … ─▶ close()

- Workers are addressed by their index in the launch, 0 … n-1; only the controller deals with ranks.
- Every launched worker gets exactly one ``WorkerExited``, after everything else it sent. Workers that a newer launch
  replaces get none, and the newer launch may happen inside ``deliver``.
- Messages to a worker that has exited are dropped.

``headway.testing.contracts.engine`` contains the tests that every engine passes.
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
    """The resources that one run's workers need. Once granted, they belong to the run until ``Engine.close``."""

    def check(self) -> None:
        """Raise ConfigError if the minimum number of workers can never run here."""

    def request(self, owner: str) -> None:
        """Join the queue for the resources the workers need; a request that was already granted is confirmed again.

        The engine delivers ``ResourcesGrantedEvent`` when the run holds all of them, and before that
        ``ResourcesAwaitedEvent`` if the run has to wait. ``owner`` is the run's name, shown to other waiting runs.
        """

    def num_available_workers(self) -> int:
        """Return how many workers can run now, at most ``max_workers``.

        Raises EngineError if that is less than ``min_workers``. Valid only after the request was granted.
        """

    def limit(self, num_workers: int | None) -> None:
        """Limit the number of workers, whatever is available; the engine delivers ``CapacityEvent``."""

    def threads_per_worker(self, num_workers: int) -> int | None:
        """Return how many CPU threads each of ``num_workers`` workers should use; None if the user decides."""


class OneShotProcess(Protocol):
    """A process, separate from the workers, that answers one question."""

    def ask(self, question: object, timeout_s: float | None) -> object:
        """Start the process, send it the question and wait for the answer.

        Args:
            question: A message for the process.
            timeout_s: How long the answer may take once the process is ready; None: no limit.

        Returns:
            The answer, or WorkerExited, TimedOut or Cancelled. The process has ended or is being killed.
        """

    def cancel(self) -> None:
        """Kill the process or prevent its start; ``ask`` returns Cancelled. Any thread may call this."""

    def close(self) -> None:
        """Release all resources. ``cancel`` may still be called."""


class TimedOut:
    """The outcome of a question that was not answered in time; the process was killed."""


class Cancelled:
    """The outcome of a question that was cancelled; the process was killed."""


class Engine(Protocol):
    @property
    def resources(self) -> Resources:
        """The resources that the run needs and holds."""

    @property
    def in_process(self) -> bool:
        """Whether this process is the only worker, so that its function runs in the thread that calls ``pump``."""

    @property
    def in_user_code(self) -> bool:
        """Whether this process is executing the training function now, so that Ctrl-C is meant for that function."""

    def open(self, deliver: Deliver) -> None:
        """Get ready to launch; from now on ``pump`` delivers events."""

    def launch(self, attempt: int, num_workers: int) -> None:
        """Start workers, each of which will send Ready, and kill the remaining workers of an earlier launch.

        Raises:
            EngineError: If the launch cannot even be attempted.
        """

    def send(self, index: int, message: ToWorker) -> None:
        """Send a message to one worker, in order, without waiting for it."""

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in every worker, as Ctrl-C does."""

    def kill(self) -> None:
        """Kill every process of the latest launch, with everything it started."""

    def process_stats(self, index: int) -> ProcessStats | None:
        """Return the system's statistics of this worker's process; None if they are unknown or it has ended."""

    def outside_stacks(self, index: int) -> OutsideStacks | None:
        """Return the stacks of a worker that cannot answer; None if there is no way to get them."""

    def one_shot_process(self, entry: str) -> OneShotProcess:
        """Return a process for one question; any single thread may use it.

        Args:
            entry: The module whose ``main(connection)`` it runs; ``connection`` is a connected socket.
        """

    def pump(self, timeout_s: float | None) -> None:
        """Deliver the events that have occurred; wait at most ``timeout_s`` for the first one."""

    def post(self, event: object) -> None:
        """Have ``pump`` deliver this event. Any thread may call this, even before ``open``."""

    def close(self) -> None:
        """End all processes, and then release the resources, so that the next run does not share them with these.

        Also valid if the engine was never opened, if ``open`` failed, and after an earlier ``close``.
        """


def worker_entry(name: str) -> Any:
    """Look up a function of the worker's module by name, so that the engine does not depend on what it starts."""
    return getattr(importlib.import_module(WORKER), name)
