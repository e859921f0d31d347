"""The state machine's events, other than messages from workers and users, and the actions that it returns.

All are plain values. :mod:`headway.control.machine.transitions` turns events into actions, which the controller
performs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Literal

from headway.control.machine.report_rounds import ClosedRound, ReportRound
from headway.control.machine.retry_policy import Failure
from headway.core.checkpoints import SavedCheckpoint, ValidationRecord
from headway.core.messages import (
    AbortEvent,
    CapacityEvent,
    FromWorker,
    Report,
    StopEvent,
    TerminateEvent,
    ToWorker,
    UploadGrant,
    UploadRequest,
)


class RunState(StrEnum):
    WAITING = "WAITING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    VALIDATING = "VALIDATING"
    FINISHED = "FINISHED"
    STOPPED = "STOPPED"
    PREEMPTED = "PREEMPTED"
    FAILED = "FAILED"
    ABORTED = "ABORTED"


ENDS = frozenset({RunState.FINISHED, RunState.STOPPED, RunState.PREEMPTED, RunState.FAILED, RunState.ABORTED})


# --- events ---


@dataclass(frozen=True, slots=True)
class BeginEvent:
    """Start the (next) attempt."""


@dataclass(frozen=True, slots=True)
class LaunchedEvent:
    """The engine is starting this many workers."""

    attempt: int
    num_workers: int


@dataclass(frozen=True, slots=True)
class LaunchFailedEvent:
    """The workers could not be started; ``lost``: because another program has taken over the run."""

    attempt: int
    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class CommitDoneEvent:
    """Storage has committed this round's files as a checkpoint."""

    attempt: int
    seq: int
    saved: SavedCheckpoint


@dataclass(frozen=True, slots=True)
class CommitFailedEvent:
    """Storage could not commit these files; ``lost``: because another program has taken over the run."""

    attempt: int
    seq: int
    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class SaveFinishedEvent:
    """The files that a dead worker was staging are now staged, or are lost (``arrived=False``)."""

    attempt: int
    rank: int
    seq: int
    arrived: bool


@dataclass(frozen=True, slots=True)
class DeadlineEvent:
    """A time limit has expired: for starting, for leaving together, or for stopping."""

    attempt: int


@dataclass(frozen=True, slots=True)
class OverdueEvent:
    """The files of this round have waited long enough for ranks that never gave any, or (``long``) for all ranks."""

    attempt: int
    seq: int
    long: bool = False


@dataclass(frozen=True, slots=True)
class SaveDueEvent:
    """Tracked state is due to be saved: ``CheckpointConfig(every_s=...)``."""

    attempt: int


@dataclass(frozen=True, slots=True)
class PreemptedEvent:
    """These ranks will be preempted, within ``deadline_s`` seconds if the deadline is known."""

    attempt: int
    ranks: frozenset[int]
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class StalledEvent:
    """The ranks have made no progress for longer than the user allows; ``text`` describes what they wait for."""

    attempt: int
    rank: int | None
    text: str


@dataclass(frozen=True, slots=True)
class ValidationDoneEvent:
    """The validation of this checkpoint has ended, successfully or not. It belongs to the run, not to an attempt."""

    path: PurePath
    validation: ValidationRecord


Answer = (
    LaunchedEvent
    | LaunchFailedEvent
    | CommitDoneEvent
    | CommitFailedEvent
    | SaveFinishedEvent
    | DeadlineEvent
    | OverdueEvent
    | SaveDueEvent
    | PreemptedEvent
    | StalledEvent
)
Event = FromWorker | BeginEvent | AbortEvent | StopEvent | TerminateEvent | CapacityEvent | ValidationDoneEvent | Answer


# --- actions ---


@dataclass(frozen=True, slots=True)
class LaunchWorkers:
    """Start the workers of an attempt; LaunchedEvent or LaunchFailedEvent follows."""

    attempt: int
    first_seq: int


@dataclass(frozen=True, slots=True)
class AssignRanks:
    """Assign ranks, as all processes are ready, and send each one its Start with the checkpoint to resume from."""

    attempt: int
    first_seq: int
    newest: SavedCheckpoint | None


@dataclass(frozen=True, slots=True)
class ReleaseCheckpoint:
    """Release the checkpoint that the attempt started from, because every rank has read it."""


@dataclass(frozen=True, slots=True)
class RecordReport:
    rank: int
    report: Report


@dataclass(frozen=True, slots=True)
class RecordRound:
    """Record a complete round; with ``committing``, callbacks are called once its checkpoint is committed."""

    round: ReportRound
    committing: bool


@dataclass(frozen=True, slots=True)
class CommitCheckpoint:
    """Make a checkpoint of a round's files; CommitDoneEvent or CommitFailedEvent follows.

    ``name`` is None if the ranks' files contain the checkpoint's name.
    """

    attempt: int
    round: ReportRound
    number: int
    name: str | None


@dataclass(frozen=True, slots=True)
class ExtendCheckpoint:
    """Add this rank's late files to the checkpoint of their round; answered like a commit."""

    attempt: int
    seq: int
    rank: int


@dataclass(frozen=True, slots=True)
class RejectLateFiles:
    """Reject files that are too late for any checkpoint."""

    round: ReportRound


@dataclass(frozen=True, slots=True)
class DropFiles:
    """Drop a round's files, which do not become a checkpoint; ``directory`` is where uploaded files are."""

    attempt: int
    closed: ClosedRound
    directory: str | None


@dataclass(frozen=True, slots=True)
class RecoverFiles:
    """Stage the files that a dead worker promised; SaveFinishedEvent follows."""

    attempt: int
    rank: int
    seq: int


@dataclass(frozen=True, slots=True)
class RecordCheckpoint:
    """Record that a checkpoint was committed."""

    attempt: int
    seq: int
    saved: SavedCheckpoint


@dataclass(frozen=True, slots=True)
class WithdrawCheckpoint:
    """Remove the checkpoint of this round because it turned out to be incomplete."""

    seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class RetireCheckpoint:
    """Remove a checkpoint that better ones replace."""

    saved: SavedCheckpoint
    reason: str


@dataclass(frozen=True, slots=True)
class SweepAttempt:
    """Remove what an attempt left in staging, except the files of the reports ``keep``."""

    attempt: int
    uploads: frozenset[str]
    keep: frozenset[int]


@dataclass(frozen=True, slots=True)
class GrantUpload:
    """Answer a rank's UploadRequest, if no other program has taken over the run."""

    rank: int
    request: UploadRequest
    grant: UploadGrant


@dataclass(frozen=True, slots=True)
class SendMessage:
    rank: int
    message: ToWorker


@dataclass(frozen=True, slots=True)
class StartValidation:
    """Validate a checkpoint; ValidationDoneEvent follows."""

    saved: SavedCheckpoint


@dataclass(frozen=True, slots=True)
class RecordValidation:
    """Record the end of a validation; ``saved`` is None if its checkpoint no longer exists."""

    path: PurePath
    validation: ValidationRecord
    saved: SavedCheckpoint | None


@dataclass(frozen=True, slots=True)
class CancelValidations:
    """Cancel every validation. They stay pending, and start again when the run is next opened."""


@dataclass(frozen=True, slots=True)
class InterruptWorkers:
    """Interrupt the Python code of every worker."""


@dataclass(frozen=True, slots=True)
class KillWorkers:
    """Kill every process of this attempt."""


@dataclass(frozen=True, slots=True)
class SetDeadline:
    """Set the attempt's deadline, or clear it (None).

    Args:
        after_s: The time until the deadline.
        awaited: Ranks that files wait for until then.
        shortens: Whether an earlier deadline stays.
    """

    after_s: float | None
    awaited: frozenset[int] = frozenset()
    shortens: bool = False


@dataclass(frozen=True, slots=True)
class AnnouncePreemption:
    """Tell all workers which ranks will be preempted, and when."""

    ranks: frozenset[int]
    within_s: float


@dataclass(frozen=True, slots=True)
class ScheduleAttempt:
    """Start the next attempt after a pause."""

    after_s: float


@dataclass(frozen=True, slots=True)
class RecordRetry:
    """Record that this attempt has ended and another one follows."""

    attempt: int
    failures: tuple[Failure, ...] = ()
    why: Literal["fail", "preempt", "resize"] = "fail"
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EndRun:
    state: RunState
    failures: tuple[Failure, ...] = ()


Action = (
    LaunchWorkers
    | AssignRanks
    | ReleaseCheckpoint
    | RecordReport
    | RecordRound
    | CommitCheckpoint
    | ExtendCheckpoint
    | RejectLateFiles
    | DropFiles
    | RecoverFiles
    | RecordCheckpoint
    | WithdrawCheckpoint
    | RetireCheckpoint
    | SweepAttempt
    | GrantUpload
    | StartValidation
    | RecordValidation
    | CancelValidations
    | SendMessage
    | InterruptWorkers
    | KillWorkers
    | SetDeadline
    | AnnouncePreemption
    | ScheduleAttempt
    | RecordRetry
    | EndRun
)
