"""Persistent workers, which outlive a run, so that the next run uses the same processes with everything they imported.

To the controller of a run they look like any others: a worker that becomes idle appears to have exited, and one that is
launched again is ready immediately. If a run fails, its workers are killed, and the next run gets new ones.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import time
import weakref
from collections.abc import Callable, Sequence

from headway.core.config import ScalingConfig
from headway.core.errors import EngineError
from headway.core.messages import (
    FromWorker,
    Ready,
    ResourcesAwaitedEvent,
    ResourcesGrantedEvent,
    ToWorker,
    WorkerExited,
    WorkerIdle,
)
from headway.engine.base import Deliver, OneShotProcess
from headway.engine.local import LocalEngine
from headway.engine.process_stats import OutsideStacks, ProcessStats
from headway.engine.resources.broker import RunResources

START_S = 120.0


class PersistentEngine:
    """A local engine that consecutive runs open and close, until ``shut_down``.

    See :class:`headway.engine.base.Engine` for what each method guarantees.

    Args:
        scaling: The number of workers and the resources each of them needs.
        preload: Modules that the fork server imports before it forks.
        warm: Modules that the fork server imports when there is time.
    """

    in_process = False
    in_user_code = False

    def __init__(self, scaling: ScalingConfig, preload: Sequence[str] = (), warm: Sequence[str] = ()) -> None:
        self._local = LocalEngine(scaling, preload, warm)
        weakref.finalize(self, _close_forgotten, self._local, os.getpid()).atexit = False
        self._is_open = False
        self._deliver: Deliver | None = None  # delivers to the run that is using the workers, if any
        self._attempt = 0
        self._num_workers = 0  # in the latest launch
        self._ready: dict[int, Ready] = {}
        self._idle: set[int] = set()
        self._exited: set[int] = set()
        self._granted = False

    def start(self, num_workers: int, owner: str, say: Callable[[str], None]) -> None:
        """Start workers that wait for their first run, as soon as the resources they need are free.

        Args:
            num_workers: The number of workers to start.
            owner: The owner of the workers, shown to runs that wait for the same resources.
            say: Called with a line of text if the resources are not free yet.
        """

        def on_events(events: Sequence[object]) -> None:
            for event in events:
                if isinstance(event, ResourcesAwaitedEvent):
                    say(event.text)

        self.resources.check()
        with contextlib.ExitStack() as undo:
            undo.callback(self.shut_down)
            self.resources.request(owner)
            self.open(on_events)
            while not self._granted:
                self.pump(None)
            self.launch(0, num_workers)
            self._wait_until_ready(num_workers)
            undo.pop_all()
        self._idle = set(self._ready)
        self._deliver = None

    def _wait_until_ready(self, num_workers: int) -> None:
        ends = time.monotonic() + START_S
        while len(self._ready) < num_workers:
            self.pump(max(0.0, ends - time.monotonic()))
            if self._exited or time.monotonic() > ends:
                raise EngineError(f"only {len(self._ready)} of {num_workers} workers started")

    def shut_down(self) -> None:
        """Kill the workers."""
        self._local.close()
        self._is_open = self._granted = False
        self._ready, self._idle = {}, set()

    # --- the contract ---

    @property
    def resources(self) -> RunResources:
        return self._local.resources

    def open(self, deliver: Deliver) -> None:
        self._deliver = deliver
        if not self._is_open:
            self._local.open(_weakly(self._pass_on))
            self._is_open = True

    def launch(self, attempt: int, num_workers: int) -> None:
        num_idle = -1
        while num_idle != len(self._idle):  # idle workers may have exited since the last run, unnoticed
            num_idle = len(self._idle)
            self._local.pump(0)
        self._attempt, self._num_workers = attempt, num_workers
        if self._idle == set(range(num_workers)):
            self._idle = set()
            self._pass_on([FromWorker(attempt, index, self._ready[index]) for index in range(num_workers)])
        else:
            self._ready, self._idle, self._exited = {}, set(), set()
            self._local.launch(attempt, num_workers)

    def send(self, index: int, message: ToWorker) -> None:
        self._local.send(index, message)

    def interrupt(self) -> None:
        self._local.interrupt()

    def kill(self) -> None:
        self._local.kill()

    def process_stats(self, index: int) -> ProcessStats | None:
        return self._local.process_stats(index)

    def outside_stacks(self, index: int) -> OutsideStacks | None:
        return self._local.outside_stacks(index)

    def one_shot_process(self, entry: str) -> OneShotProcess:
        return self._local.one_shot_process(entry)

    def pump(self, timeout_s: float | None) -> None:
        self._local.pump(timeout_s)

    def post(self, event: object) -> None:
        self._local.post(event)

    def close(self) -> None:
        """End a run: keep the workers if all of them are idle, otherwise kill them."""
        self._deliver = None
        if len(self._idle) < max(1, self._num_workers):
            self.shut_down()
        self._local.discard_posted()

    def _pass_on(self, events: Sequence[object]) -> None:
        passed: list[object] = []
        for event in events:
            if isinstance(event, ResourcesGrantedEvent):
                self._granted = True
            seen = self._seen(event) if isinstance(event, FromWorker) else event
            if seen is not None:
                passed.append(seen)
        if passed and self._deliver is not None:
            self._deliver(passed)

    def _seen(self, event: FromWorker) -> FromWorker | None:
        """Return the message as the run should see it; None if the run has seen it before."""
        message = event.message
        match message:
            case Ready():
                self._ready[event.rank] = message
            case WorkerIdle():
                self._idle.add(event.rank)
                message = WorkerExited(code=0)
            case WorkerExited():
                self._exited.add(event.rank)
                if event.rank in self._idle:
                    self._idle.discard(event.rank)
                    return None  # its run saw it exit when it became idle
            case _ if event.rank in self._idle:
                return None
        return FromWorker(self._attempt, event.rank, message)


def _weakly(deliver: Deliver) -> Deliver:
    """Return a function that calls this method, but does not keep its object alive."""
    method = weakref.WeakMethod(deliver)

    def call(events: Sequence[object]) -> None:
        if (found := method()) is not None:
            found(events)

    return call


def _close_forgotten(engine: LocalEngine, owner: int) -> None:
    """Close the engine of persistent workers that were garbage-collected, as when a notebook replaces a trainer.

    The garbage collector may interrupt any thread, also one that holds locks, so this uses another thread.
    """
    if os.getpid() == owner:  # not in a process that the user forked
        with contextlib.suppress(RuntimeError):  # the program is ending
            _thread.start_new_thread(engine.close, ())  # threading.Thread has locks that this thread may hold
