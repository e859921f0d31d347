"""The validation runner validates checkpoints while training continues, each in a separate process.

    controller ── start ──▶ queue ──▶ thread ══ process        thread ── ValidationDoneEvent ──▶ controller

The oldest checkpoint comes first, and the number of simultaneous validations is limited. Each validation has a thread
that waits for it, because the controller of an inline run can wait only for the training function. A failed validation
never fails the run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cloudpickle

from headway.control.machine.events import ValidationDoneEvent
from headway.control.run_plan import RunPlan, Validator
from headway.control.workers.start_message import process_setup
from headway.core import phrases
from headway.core.checkpoints import SavedCheckpoint, ValidationRecord
from headway.core.messages import FunctionFailed, RunValidation, ValidationReturned, WorkerExited
from headway.core.schema.journal_entries import ValidationStartEntry
from headway.core.validation import ReportedCheckpointStatus as Status
from headway.engine.base import Cancelled, Engine, OneShotProcess, TimedOut
from headway.storage.run import layout
from headway.storage.run.run_directory import RunDirectory

ENTRY = "headway.worker.validation_main"
LEAVE_S = 5.0  # timeout for a thread whose process was killed


class ValidationRunner:
    """The validation runner. Its public methods are called only in the controller's thread."""

    def __init__(
        self, plan: RunPlan, engine: Engine, rundir: RunDirectory, post: Callable[[ValidationDoneEvent], None]
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._post = post
        self._rundir = rundir
        self._waiting: queue.PriorityQueue[tuple[float, int, SavedCheckpoint | None]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._threads: list[threading.Thread] = []
        self._running: set[OneShotProcess] = set()
        self._canceled = threading.Event()
        if plan.validator is not None:
            self._setup = process_setup({**plan.config.env_vars, **plan.validator.env_vars})

    def start(self, saved: SavedCheckpoint) -> None:
        """Queue this checkpoint for validation; ValidationDoneEvent follows. Without a validator, do nothing."""
        if self._plan.validator is None:
            return
        self._rundir.note(ValidationStartEntry(path=saved.path.name, seq=saved.seq))
        self._waiting.put((saved.seq, next(self._order), saved))
        if len(self._threads) < self._plan.validator.max_concurrent:
            self._threads.append(threading.Thread(target=self._work, name="headway-validation", daemon=True))
            self._threads[-1].start()

    def cancel(self) -> None:
        """Kill running validations and forget pending ones; return when their processes are gone."""
        self._canceled.set()  # first, so that a thread that starts now either sees this or is seen below
        for process in tuple(self._running):
            process.cancel()
        for _ in self._threads:
            self._waiting.put((float("-inf"), next(self._order), None))
        for thread in self._threads:
            thread.join(LEAVE_S)

    # --- its threads ---

    def _work(self) -> None:
        validator = self._plan.validator
        assert validator is not None
        while (saved := self._waiting.get()[2]) is not None and not self._canceled.is_set():
            asked = saved.validation or ValidationRecord()
            timeout_s = asked.timeout_s or validator.timeout_s
            try:
                outcome = self._outcome(self._request(validator, saved, asked), timeout_s)
            except Exception as error:  # for example, out of memory; the run must still be told
                outcome = WorkerExited(reason=f"could not be started: {error}")
            if not isinstance(outcome, Cancelled):
                self._post(ValidationDoneEvent(saved.path, verdict(asked, outcome, timeout_s)))

    def _outcome(self, request: RunValidation, timeout_s: float | None) -> Any:
        with contextlib.closing(self._engine.one_shot_process(ENTRY)) as process:
            self._running.add(process)
            try:
                return Cancelled() if self._canceled.is_set() else process.ask(request, timeout_s)
            finally:
                self._running.discard(process)

    def _request(self, validator: Validator, saved: SavedCheckpoint, asked: ValidationRecord) -> RunValidation:
        logs = (layout.validation_log(self._rundir.path, saved.path.name, stream) for stream in ("out", "err"))
        out, err = map(str, logs)
        return RunValidation(
            setup=self._setup,
            logs=(out, err),
            task=validator.task,
            checkpoint=cloudpickle.dumps(self._rundir.backend.checkpoint(saved.path)),
            kwargs=asked.kwargs,
            key=self._rundir.key.secret,
            trust=self._plan.config.trust,
        )


def verdict(asked: ValidationRecord, outcome: Any, timeout_s: float | None) -> ValidationRecord:
    """Return the outcome as a record, without the arguments of the request, which are no longer needed."""
    asked = replace(asked, kwargs={}, timeout_s=None)
    match outcome:
        case ValidationReturned(metrics=text):
            return replace(asked, status=Status.VALIDATED, metrics=json.loads(text))
        case TimedOut():
            return replace(asked, status=Status.VALIDATION_TIMEOUT, error=f"it took longer than {timeout_s:g} s")
        case FunctionFailed(kind=kind, message=message, misuse=misuse):
            error = message if misuse else f"{kind}: {message}" if message else kind
        case WorkerExited():
            error = f"its process {phrases.death(outcome)}"
        case _:
            error = f"its process sent an unexpected answer: {outcome!r}"
    return replace(asked, status=Status.VALIDATION_FAILED, error=error)
