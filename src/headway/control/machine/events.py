"""The events that the state machine takes, beside messages of workers and users, and the actions that it returns.

Plain values. :mod:`headway.control.machine.transitions` turns events into actions; the controller performs them.
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
    """The workers could not be started; ``lost``: another program has taken over the run."""

    attempt: int
    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class CommitDoneEvent:
    """Storage has made this round's files a checkpoint."""

    attempt: int
    seq: int
    saved: SavedCheckpoint


@dataclass(frozen=True, slots=True)
class CommitFailedEvent:
    """Storage could not commit these files; ``lost``: another program has taken over the run."""

    attempt: int
    seq: int
    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class SaveFinishedEvent:
    """The files that a dead worker was about to stage are staged now, or are lost (``arrived=False``)."""

    attempt: int
    rank: int
    seq: int
    arrived: bool


@dataclass(frozen=True, slots=True)
class DeadlineEvent:
    """The time limit is over: to start, to leave together, to stop."""

    attempt: int


@dataclass(frozen=True, slots=True)
class OverdueEvent:
    """The files of this round have waited long enough for absent ranks; ``long``: for all of them."""

    attempt: int
    seq: int
    long: bool = False


@dataclass(frozen=True, slots=True)
class SaveDueEvent:
    """Tracked state is due to be saved: ``CheckpointConfig(every_s=...)``."""

    attempt: int


@dataclass(frozen=True, slots=True)
class PreemptedEvent:
    """These ranks are preempted, in so many seconds if that is known."""

    attempt: int
    ranks: frozenset[int]
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class StalledEvent:
    """The ranks have made no progress for longer than the user allows; ``text`` says what they wait for."""

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
    """All processes run: assign ranks, and send each its Start with the checkpoint to resume from."""

    attempt: int
    first_seq: int
    newest: SavedCheckpoint | None


@dataclass(frozen=True, slots=True)
class ReleaseCheckpoint:
    """Every rank has read the checkpoint that it started from."""


@dataclass(frozen=True, slots=True)
class RecordReport:
    rank: int
    report: Report


@dataclass(frozen=True, slots=True)
class RecordRound:
    """A round is complete; with ``committing``, callbacks hear of it when its checkpoint is committed."""

    round: ReportRound
    committing: bool


@dataclass(frozen=True, slots=True)
class CommitCheckpoint:
    """Make a checkpoint of a round's files; CommitDoneEvent or CommitFailedEvent follows.

    ``name`` is None where the ranks' files say how the checkpoint is called.
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
    """Late files that no checkpoint takes any more."""

    round: ReportRound


@dataclass(frozen=True, slots=True)
class DropFiles:
    """A round's files become no checkpoint; ``directory`` is where uploads lie."""

    attempt: int
    closed: ClosedRound
    directory: str | None


@dataclass(frozen=True, slots=True)
class RecoverFiles:
    """Stage the files that a dead worker has promised; SaveFinishedEvent follows."""

    attempt: int
    rank: int
    seq: int


@dataclass(frozen=True, slots=True)
class RecordCheckpoint:
    """A checkpoint was committed."""

    attempt: int
    seq: int
    saved: SavedCheckpoint


@dataclass(frozen=True, slots=True)
class WithdrawCheckpoint:
    """Remove the checkpoint of this round: it turned out to be incomplete."""

    seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class RetireCheckpoint:
    """Remove a checkpoint that better ones replace."""

    saved: SavedCheckpoint
    reason: str


@dataclass(frozen=True, slots=True)
class SweepAttempt:
    """Remove what an attempt has left in staging, but for the files of the reports ``keep``."""

    attempt: int
    uploads: frozenset[str]
    keep: frozenset[int]


@dataclass(frozen=True, slots=True)
class GrantUpload:
    """Answer a rank's UploadRequest, if the run is still ours."""

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
    """A validation has ended; ``saved`` is None where its checkpoint is gone."""

    path: PurePath
    validation: ValidationRecord
    saved: SavedCheckpoint | None


@dataclass(frozen=True, slots=True)
class CancelValidations:
    """End every validation. They stay pending, and start again when the run is opened again."""


@dataclass(frozen=True, slots=True)
class InterruptWorkers:
    """Ask every worker's Python to stop."""


@dataclass(frozen=True, slots=True)
class KillWorkers:
    """Kill every process of this attempt."""


@dataclass(frozen=True, slots=True)
class SetDeadline:
    """Set the deadline of the attempt, or clear it (None). ``awaited``: until then, files wait for these ranks."""

    after_s: float | None
    awaited: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class AnnouncePreemption:
    """Tell all workers that these ranks are preempted, and when."""

    ranks: frozenset[int]
    within_s: float


@dataclass(frozen=True, slots=True)
class ScheduleAttempt:
    """Start the next attempt after a pause."""

    after_s: float


@dataclass(frozen=True, slots=True)
class RecordRetry:
    """This attempt has ended and another follows."""

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
