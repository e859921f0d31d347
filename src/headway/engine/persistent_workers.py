"""Workers that outlive a run: the next one finds the same processes, with what they have imported and kept.

To the controller of a run they look like any others: who rests until the next run has left this one, and who is asked
for again is ready at once. A run that does not end well takes its workers along; the next one gets new ones.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Any

from headway.core.errors import EngineError
from headway.core.messages import FromWorker, Ready, WorkerExited, WorkerIdle
from headway.engine.base import Deliver
from headway.engine.local import LocalEngine

BRING_UP_S = 120.0


class PersistentEngine(LocalEngine):
    """A local engine that is opened and closed by one run after another, until ``shut_down``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_open = False
        self._controller: Deliver | None = None  # of the run that goes on, if one does
        self._ready: dict[int, Ready] = {}
        self._resting: set[int] = set()

    def bring_up(self, num_workers: int) -> None:
        """Start workers that wait for their first run."""
        self.open(lambda events: None)
        try:
            super().launch(0, num_workers)
            self._wait_for(num_workers)
        except BaseException:
            self.shut_down()
            raise
        self._resting = set(self._ready)
        self._controller = None

    def _wait_for(self, num_workers: int) -> None:
        ends = time.monotonic() + BRING_UP_S
        while len(self._ready) < num_workers:
            self.pump(max(0.0, ends - time.monotonic()))
            if any(channel.left for channel in self._channels) or time.monotonic() > ends:
                raise EngineError(f"only {len(self._ready)} of {num_workers} workers came up")

    def open(self, deliver: Deliver) -> None:
        self._controller = deliver
        if not self._is_open:
            super().open(self._pass_on)
            self._is_open = True

    def launch(self, attempt: int, num_workers: int) -> None:
        self._look_for_deaths()
        if self._resting != set(range(num_workers)):
            self._renew()
            return super().launch(attempt, num_workers)
        self._attempt = attempt
        self._resting = set()
        self._pass_on([FromWorker(attempt, index, self._ready[index]) for index in range(num_workers)])

    def _look_for_deaths(self) -> None:
        """Nobody has listened since the last run."""
        while self._resting and self._session is not None and select.select([self._session], [], [], 0)[0]:
            self._read_session()

    def close(self) -> None:
        """The end of a run: workers that rest are kept, unless one of them is missing."""
        self._controller = None
        if len(self._resting) < max(1, len(self._channels)):
            self.shut_down()

    def shut_down(self) -> None:
        """The end of the workers."""
        if self._is_open:
            super().close()
            self._is_open = False
        self._ready, self._resting = {}, set()

    def _renew(self) -> None:
        """Let go of workers that cannot go on together; the nursery ends them when their session closes."""
        if self._channels and self._session is not None:
            self._close_session(self._session)
        self._drop_all()
        self._ready, self._resting = {}, set()

    def _pass_on(self, events: Sequence[Any]) -> None:
        passed = []
        for event in events:
            if isinstance(event, FromWorker):
                match event.message:
                    case Ready() as ready:
                        self._ready[event.rank] = ready
                    case WorkerIdle():
                        self._resting.add(event.rank)
                        event = FromWorker(event.attempt, event.rank, WorkerExited(code=0))
                    case WorkerExited() if event.rank in self._resting:
                        self._resting.discard(event.rank)
                        continue  # its run was told already that it has left
            passed.append(event)
        if passed and self._controller is not None:
            self._controller(passed)
