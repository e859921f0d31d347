"""The inline engine: this process is the only worker, so that ``breakpoint()`` works and closures are not pickled.

The function runs inside :meth:`InlineEngine.pump`, and its messages are delivered from inside its own calls, on one
thread and without copies.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from headway.core.config import ScalingConfig
from headway.core.environment import outer_ranks
from headway.core.errors import ConfigError
from headway.core.messages import (
    AbortEvent,
    FromWorker,
    RankAssignment,
    Ready,
    Report,
    Start,
    ToController,
    ToWorker,
    WorkerExited,
)
from headway.core.task import Task
from headway.engine.base import Deliver, worker_entry
from headway.engine.one_shot_process import ForkedOneShotProcess
from headway.engine.process_stats import OutsideStacks, ProcessStats
from headway.engine.resources import hardware
from headway.engine.resources.broker import RunResources


class InlineEngine:
    """The engine whose only worker is this process; :class:`headway.engine.base.Engine` documents each method.

    Args:
        scaling: The resources that the worker needs.
        task: The task that the worker runs.
        preload: Modules that one-shot processes need.
        warm: Modules that one-shot processes need later.
    """

    in_process = True

    def __init__(
        self, scaling: ScalingConfig, task: Task, preload: Sequence[str] = (), warm: Sequence[str] = ()
    ) -> None:
        if scaling.min_workers > 1:
            raise ConfigError(
                f"engine='inline' runs one worker, in this process; num_workers is {scaling.num_workers!r}"
            )
        self.resources = RunResources(scaling, self.post, in_process=True)
        self._scaling = scaling
        self._task = task
        self._modules = preload, warm
        self._posted: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._attempt = 0
        self._launched = False
        self._start: Start | None = None
        self._session: Any = None
        self.interrupted = False
        self.in_user_code = False

    def open(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def launch(self, attempt: int, num_workers: int) -> None:
        self._attempt = attempt
        self._launched = True
        self.interrupted = False

    def send(self, index: int, message: ToWorker) -> None:
        if isinstance(message, Start):
            self._start = message
        elif self._session is not None:
            self._session.receive(message)

    def interrupt(self) -> None:
        self.interrupted = True

    def kill(self) -> None:
        self.interrupted = True

    def process_stats(self, index: int) -> ProcessStats | None:
        return None

    def outside_stacks(self, index: int) -> OutsideStacks | None:
        return None

    def one_shot_process(self, entry: str) -> ForkedOneShotProcess:
        return ForkedOneShotProcess(entry, *self._modules)

    def post(self, event: object) -> None:
        self._posted.put(event)

    def pump(self, timeout_s: float | None) -> None:
        try:
            if self._launched:
                self._launched = False
                self._run()
            else:
                self._wait(timeout_s)
        except KeyboardInterrupt:
            self._deliver([AbortEvent()])

    def _wait(self, timeout_s: float | None) -> None:
        look_at = self.resources.look_at  # other threads change it
        if look_at is not None:
            wait_s = max(0.0, look_at - time.monotonic())
            timeout_s = wait_s if timeout_s is None else min(wait_s, timeout_s)
        self.deliver_posted(timeout_s)
        look_at = self.resources.look_at
        if look_at is not None and look_at <= time.monotonic():
            self.resources.look(time.monotonic())

    def _run(self) -> None:
        self.say(self._ready())
        start, self._start = self._start, None
        if start is None:  # the run was aborted before it started
            return self.say(WorkerExited(reason="never started"))
        self._session = worker_entry("Session")(start, _Link(self))
        try:
            with _environment(start.setup.env), self._user_code():
                outcome = worker_entry("run_function")(
                    start, self._session, lambda: self._task, rendezvous=None, lasting=True
                )
        except KeyboardInterrupt:
            self.deliver_posted(0)
            if not self.interrupted:
                self._deliver([AbortEvent()])
            outcome = None
        if outcome is not None:
            self.say(outcome)
        self._session = None
        self.say(WorkerExited(code=0) if outcome is not None else WorkerExited(reason="interrupted"))

    @contextlib.contextmanager
    def _user_code(self) -> Iterator[None]:
        self.in_user_code = True
        try:
            yield
        finally:
            self.in_user_code = False

    @contextlib.contextmanager
    def our_code(self) -> Iterator[None]:
        """Run Headway code called by the user's function; if the run was asked to stop, raise KeyboardInterrupt."""
        self.in_user_code = False
        try:
            yield
        finally:
            self.in_user_code = True
        if self.interrupted:
            raise KeyboardInterrupt("a stop of the run was requested")

    def _ready(self) -> Ready:
        gpus = self.resources.gpus_of_workers
        host, pid = socket.gethostname(), os.getpid()
        place = _place_by_torchrun(self._scaling)
        return Ready(host=host, pid=pid, port=hardware.free_port(), gpus=gpus[0] if gpus else (), place=place)

    def say(self, message: ToController) -> None:
        self._deliver([FromWorker(self._attempt, 0, message)])

    def deliver_posted(self, timeout_s: float | None) -> None:
        """Deliver the events that other threads posted; wait at most ``timeout_s`` for the first one."""
        with contextlib.suppress(queue.Empty):
            first = self._posted.get_nowait() if timeout_s == 0 else self._posted.get(timeout=timeout_s)
            self._deliver([first])
            while True:
                self._deliver([self._posted.get_nowait()])

    def close(self) -> None:
        self.resources.release()


class _Link:
    """The worker's connection: messages from the user's function are direct calls into the controller."""

    alone = True

    def __init__(self, engine: InlineEngine) -> None:
        self._engine = engine

    def send(self, message: ToController, *, wake: bool = True) -> None:
        with self._engine.our_code():
            self._engine.say(message)
            self._engine.deliver_posted(0)

    def report(self, seq: int, time: float, metrics: bytes, staged: bool, pending: bool, cursor: bytes = b"") -> None:
        self.send(Report(seq, time, metrics, staged, pending, cursor))

    def wait(self, done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not done():
            left = until - time.monotonic()
            if left <= 0:
                return False
            with self._engine.our_code():
                self._engine.deliver_posted(None if left == math.inf else left)
        return True


@contextlib.contextmanager
def _environment(env: dict[str, str]) -> Iterator[None]:
    """Set these variables, and restore the previous environment at the end."""
    before = dict(os.environ)
    os.environ.update(env)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _place_by_torchrun(scaling: ScalingConfig) -> RankAssignment | None:
    """Return the ranks that an outer torchrun assigned to this process, if there is one."""
    outer = outer_ranks()
    if outer is None:
        return None
    with_gpu = scaling.num_gpus_per_worker > 0
    return RankAssignment(
        **asdict(outer),
        gpus=(outer.local_rank,) if with_gpu else (),
        visible_gpus=tuple(hardware.gpus()) if with_gpu else (),
    )
