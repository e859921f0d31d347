"""The committer commits, extends and removes checkpoints, in order and in a separate thread.

    controller ── commit, extend, recover, remove, sweep ──▶ queue ──▶ thread ══ checkpoint backend
               ◀── CommitDoneEvent, CommitFailedEvent, SaveFinishedEvent, WarningEvent ── thread

It decides nothing: :mod:`headway.control.machine.checkpoint_table` does. It receives frozen values and posts events.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, assert_never

from headway.control.machine.events import (
    CommitCheckpoint,
    CommitDoneEvent,
    CommitFailedEvent,
    DropFiles,
    ExtendCheckpoint,
    RecoverFiles,
    RetireCheckpoint,
    SaveFinishedEvent,
    SweepAttempt,
    WithdrawCheckpoint,
)
from headway.control.machine.report_rounds import ReportRound
from headway.core.checkpoints import SavedCheckpoint, ValidationRecord
from headway.core.errors import StorageError
from headway.core.schema.data_cursor import merged
from headway.storage.checkpoint.backend import CheckpointBackend
from headway.storage.checkpoint.commit import CommitRequest
from headway.storage.object_store.lease import LeaseLost

NICE = 10


@dataclass(frozen=True)
class WarningEvent:
    """A problem that does not endanger the run but should be logged."""

    text: str
    about: str = "storage"


StorageAction = (
    CommitCheckpoint
    | ExtendCheckpoint
    | RecoverFiles
    | WithdrawCheckpoint
    | RetireCheckpoint
    | DropFiles
    | SweepAttempt
)
Post = Callable[[CommitDoneEvent | CommitFailedEvent | SaveFinishedEvent | WarningEvent], None]


class CheckpointCommitter:
    """The committer. Its public methods pass jobs to its thread, and only this thread uses the private fields."""

    def __init__(self, backend: CheckpointBackend, post: Post) -> None:
        self._backend = backend
        self._post = post
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._paths: dict[int, PurePath] = {}  # this attempt's reports -> the checkpoint made from each
        self._unwanted: dict[PurePath, str] = {}  # checkpoints to be removed -> the last logged error of each
        self._thread = threading.Thread(target=self._work, name="headway-committer", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Return when everything that was requested is on disk."""
        self._jobs.put(None)
        self._thread.join()

    def perform(self, action: StorageAction) -> None:
        """Pass an action of the state machine to the thread."""
        match action:
            case CommitCheckpoint(attempt=attempt, round=round):
                self._answer(attempt, round.seq, functools.partial(self._commit, action))
            case ExtendCheckpoint(attempt=attempt, seq=seq, rank=rank):
                self._answer(attempt, seq, lambda: self._backend.extend(self._paths[seq], attempt, seq, rank))
            case RecoverFiles():
                self._jobs.put(functools.partial(self._recover, action))
            case WithdrawCheckpoint(seq=seq):
                self._jobs.put(functools.partial(self._withdraw, seq))
            case RetireCheckpoint(saved=saved):
                self._jobs.put(functools.partial(self._remove, saved.path))
            case DropFiles(attempt=attempt, closed=closed, directory=directory):
                for rank in closed.round.givers:
                    self._jobs.put(functools.partial(self._backend.clear, attempt, closed.round.seq, rank, directory))
            case SweepAttempt():
                self._jobs.put(functools.partial(self._sweep, action))
            case _:
                assert_never(action)

    def record_validation(self, path: PurePath, validation: ValidationRecord) -> None:
        self._jobs.put(functools.partial(self._record_validation, path, validation))

    # --- the thread ---

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            os.nice(NICE)  # lowers the priority of this thread only, because training takes precedence
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:  # a failed removal must not stop later jobs
                self._post(_not_removed(error))

    def _answer(self, attempt: int, seq: int, save: Callable[[], SavedCheckpoint]) -> None:
        def job() -> None:
            try:
                saved = save()
            except Exception as error:  # whatever storage raises, the run must be informed
                reason = f"the checkpoint of report {seq} could not be committed: {error}"
                self._post(CommitFailedEvent(attempt, seq, reason, lost=isinstance(error, LeaseLost)))
            else:
                self._paths[seq] = saved.path
                self._post(CommitDoneEvent(attempt, seq, saved))

        self._jobs.put(job)

    def _commit(self, request: CommitCheckpoint) -> SavedCheckpoint:
        """Commit a round. Metrics may be megabytes of text, so they are parsed here, not in the controller's thread."""
        round = request.round
        return self._backend.commit(
            CommitRequest(
                number=request.number,
                seq=round.seq,
                attempt=request.attempt,
                world_size=len(round.reports),
                ranks=round.givers,
                metrics=metrics_of(round),
                name=request.name,
                cursors=merged([report.cursor if report is not None else b"" for report in round.reports]),
            )
        )

    def _recover(self, request: RecoverFiles) -> None:
        attempt, rank, seq = request.attempt, request.rank, request.seq
        try:
            arrived = self._backend.finish(attempt, seq, rank)
        except Exception as error:  # the files remain where they are; without them the round is incomplete
            text = f"the files of rank {rank} for report {seq} could not be moved to storage: {error}"
            self._post(WarningEvent(text))
            arrived = False
        self._post(SaveFinishedEvent(attempt, rank, seq, arrived))

    def _withdraw(self, seq: int) -> None:
        """Remove a checkpoint from which no run may resume, even if it is being read."""
        if (path := self._paths.pop(seq, None)) is not None:
            self._unwanted[path] = ""
            if self._is_removed(path, though_read=True):
                del self._unwanted[path]

    def _remove(self, path: PurePath) -> None:
        """Remove this checkpoint, and retry earlier ones that were being read or could not be removed."""
        self._unwanted[path] = ""
        self._remove_unwanted()

    def _remove_unwanted(self) -> None:
        for each in [*self._unwanted]:
            if self._is_removed(each):
                del self._unwanted[each]

    def _is_removed(self, path: PurePath, *, though_read: bool = False) -> bool:
        """Try to remove a checkpoint. A failure does not stop the removal of other checkpoints."""
        try:
            if not though_read and self._backend.is_read(path):
                return False
            self._backend.discard(path)
        except Exception as error:
            if str(error) != self._unwanted[path]:
                self._unwanted[path] = str(error)
                self._post(_not_removed(error))
            return False
        return True

    def _sweep(self, request: SweepAttempt) -> None:
        self._paths.clear()
        self._remove_unwanted()
        self._backend.sweep(request.attempt, request.uploads, request.keep)

    def _record_validation(self, path: PurePath, validation: ValidationRecord) -> None:
        try:
            self._backend.note_validation(path, validation)
        except (OSError, StorageError) as error:
            self._post(WarningEvent(f"the validation of {path.name} could not be recorded: {error}"))


def _not_removed(error: Exception) -> WarningEvent:
    return WarningEvent(f"old checkpoint files could not be removed: {error}")


def metrics_of(round: ReportRound) -> dict[str, Any]:
    """Return the metrics of rank 0 in a round, or of the lowest rank that reported."""
    report = next(report for report in round.reports if report is not None)
    metrics: dict[str, Any] = json.loads(report.metrics)
    return metrics
