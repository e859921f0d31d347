"""Validations beside training: a few at a time, the oldest first, each in a process of its own.

    controller ── ask ──▶ queue ──▶ thread ══ process        thread ── ValidationDone ──▶ controller

Each validation that runs has a thread that waits for it: an inline run's controller cannot wait for anything but the
training function. Nothing in here can fail the run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

import cloudpickle

from headway.control.machine.events import ValidationDoneEvent
from headway.core import phrases
from headway.core.checkpoints import SavedCheckpoint, ValidationRecord
from headway.core.messages import FunctionFailed, ProcessSetup, RunValidation, ValidationReturned, WorkerExited
from headway.core.security.signing import Key
from headway.core.validation import ReportedCheckpointStatus as Status
from headway.engine.base import Cancelled, OneShotProcess, TimedOut
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.run import layout

ENTRY = "headway.worker.validation_main"
LEAVE_S = 5.0  # how long we wait for a thread whose process was killed


@dataclass(frozen=True, kw_only=True)
class Validator:
    """How checkpoints are validated. ``task`` is the packed function with the trainer's own keywords."""

    task: bytes
    timeout_s: float | None = None
    max_concurrent: int = 2
    env_vars: dict[str, str] = field(default_factory=dict)


class ValidationRunner:
    """Belongs to the controller's thread, all of it but what its threads do."""

    def __init__(
        self,
        validator: Validator,
        new_process: Callable[[str], OneShotProcess],
        run: Path,
        surroundings: ProcessSetup,
        post: Callable[[ValidationDoneEvent], None],
        key: Key,
        open_checkpoint: Callable[[PurePath], Checkpoint],
        *,
        trust: bool,
    ) -> None:
        self._open_checkpoint = open_checkpoint
        self._validator = validator
        self._new_process = new_process
        self._key = key
        self._trust = trust
        self._run = run
        self._surroundings = surroundings
        self._post = post
        self._waiting: queue.PriorityQueue[tuple[float, int, SavedCheckpoint | None]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._threads: list[threading.Thread] = []
        self._running: set[OneShotProcess] = set()
        self._over = threading.Event()

    def ask(self, saved: SavedCheckpoint) -> None:
        """Have this checkpoint validated when its turn comes; ValidationDone will follow."""
        self._waiting.put((saved.manifest.seq, next(self._order), saved))
        if len(self._threads) < self._validator.max_concurrent:
            self._threads.append(threading.Thread(target=self._work, name="headway-validation", daemon=True))
            self._threads[-1].start()

    def end(self) -> None:
        """Kill those that run and forget those that wait; returns when nothing of them lives."""
        self._over.set()  # first: a thread that begins now either sees this or is seen below
        for process in tuple(self._running):
            process.cancel()
        for _ in self._threads:
            self._waiting.put((float("-inf"), next(self._order), None))
        for thread in self._threads:
            thread.join(LEAVE_S)

    # --- our threads ---

    def _work(self) -> None:
        while (saved := self._waiting.get()[2]) is not None and not self._over.is_set():
            asked = saved.validation or ValidationRecord()
            timeout_s = asked.timeout_s or self._validator.timeout_s
            try:
                outcome = self._outcome(self._question(saved, asked), timeout_s)
            except Exception as error:  # no files left, no memory: the run must hear that it is over
                outcome = WorkerExited(reason=f"could not be had: {error}")
            if not isinstance(outcome, Cancelled):
                self._post(ValidationDoneEvent(saved.path, verdict(asked, outcome, timeout_s)))

    def _outcome(self, question: RunValidation, timeout_s: float | None) -> Any:
        with contextlib.closing(self._new_process(ENTRY)) as process:
            self._running.add(process)
            try:
                return Cancelled() if self._over.is_set() else process.ask(question, timeout_s)
            finally:
                self._running.discard(process)

    def _question(self, saved: SavedCheckpoint, asked: ValidationRecord) -> RunValidation:
        name = saved.path.name
        return RunValidation(
            surroundings=self._surroundings,
            logs=(
                str(layout.validation_log(self._run, name, "out")),
                str(layout.validation_log(self._run, name, "err")),
            ),
            task=self._validator.task,
            checkpoint=cloudpickle.dumps(self._open_checkpoint(saved.path)),
            kwargs=asked.kwargs,
            key=self._key.secret,
            trust=self._trust,
        )


def verdict(asked: ValidationRecord, outcome: Any, timeout_s: float | None) -> ValidationRecord:
    """What came of it, to be written down; what was asked for is of no use any more."""
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
            error = f"its process spoke nonsense: {outcome!r}"
    return replace(asked, status=Status.VALIDATION_FAILED, error=error)
