"""A handle on a run in the background: read its reports, wait for its result, stop it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.core.schema.metrics_lines import ReportLine
from headway.observe.run_observer import RunSnapshot
from headway.storage.run.journal import metrics
from headway.train.launch.driver_signals import heed_sigterm
from headway.train.launch.request import TrainRequest
from headway.train.result import Result

_logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from headway.engine.base import Engine

LEAVE_S = 5.0  # how long the program waits for open runs when it exits


class Reported(NamedTuple):
    """One report of one rank."""

    rank: int
    seq: int
    metrics: dict[str, Any]


class _Bell:
    """An observer that wakes the threads that wait for news."""

    def __init__(self) -> None:
        self.news = threading.Condition()

    def say(self, text: str, *, level: str = "INFO") -> None:
        pass

    def follow(self, num_workers: int) -> None:
        pass

    def tick(self, glance: RunSnapshot) -> float | None:
        self.ring()
        return None

    def ring(self) -> None:
        with self.news:
            self.news.notify_all()


class Run:
    """A run in the background, as ``trainer.start()`` returns it. ``start()`` raises errors in the request.

    >>> from headway import train
    >>> def train_func():
    ...     for step in range(3):
    ...         train.report({"step": step})
    >>> run = train.DataParallelTrainer(train_func).start()
    >>> [report.metrics["step"] for report in run.reports()]
    [0, 1, 2]
    >>> run.result().metrics
    {'step': 2}
    """

    def __init__(self, request: TrainRequest, workers: Engine | None = None) -> None:
        from headway.train.launch.fit import prepare

        self._bell = _Bell()
        heed_sigterm()
        self._execution = prepare(request, self._bell, workers=workers)
        self._over = threading.Event()  # before Python 3.13, a thread whose join() was interrupted counts as ended
        self._result: Result | None = None
        self._error: BaseException | None = None
        try:
            threading.Thread(target=self._work, name="headway-run", daemon=True).start()
        except RuntimeError:  # too many threads
            self._execution.close()
            raise
        self._owner = os.getpid()
        if not _started:
            atexit.register(_leave_all)  # registered after the engine's exit handlers, so that it runs before them
        _started.add(self)

    def _work(self) -> None:
        try:
            self._result = self._execution.run()
        except BaseException as error:  # result() raises it
            self._error = error
        finally:
            self._over.set()  # before the notification: a woken thread must not wait again
            self._bell.ring()

    def _leave(self) -> None:
        """Abort the run cleanly because the program exits."""
        if self.running and self._owner == os.getpid():
            _logger.warning(f"the program is exiting while run {self.path.name} is running: aborting the run")
            self._execution.abort()
            self._over.wait(LEAVE_S)

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._execution.path

    @property
    def running(self) -> bool:
        return not self._over.is_set()

    def reports(self, rank: int | None = 0) -> Iterator[Reported]:
        """Yield reports as they arrive, from the first until the run ends, from one rank or from all (None)."""
        tail = metrics(self.path).tail()
        while True:
            ended = not self.running
            for line in tail.lines():
                if isinstance(line, ReportLine) and rank in (None, line.rank):
                    yield Reported(line.rank, line.seq, line.metrics)
            if ended:
                return
            with self._bell.news:
                if self.running and not tail.has_grown:
                    self._bell.news.wait()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {'running' if self.running else 'ended'})"

    def stop(self) -> None:
        """Stop the run and keep its progress; ``result()`` returns it as STOPPED.

        A run of the same name resumes from its newest checkpoint. If all functions return before the
        stop reaches them, the run is FINISHED.

        Waits for running validations; a second call does not, and they stay pending.
        """
        if self.running:
            self._execution.stop()

    def result(self, timeout_s: float | None = None) -> Result:
        """Wait for the end of the run and return its result. Ctrl-C during the wait aborts the run.

        Args:
            timeout_s: The maximum time to wait in seconds; None: no limit.

        Raises:
            TimeoutError: The run is still running after ``timeout_s`` seconds.
            TrainingFailedError: The run failed, as in ``fit()``.
        """
        try:
            self._over.wait(timeout_s)
        except KeyboardInterrupt:
            self._execution.abort()
            self._over.wait()
            raise
        if self.running:
            raise TimeoutError(f"run {self.path.name} is still running after {timeout_s:g} s")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


_started: weakref.WeakSet[Run] = weakref.WeakSet()


def _leave_all() -> None:
    for run in list(_started):
        run._leave()
