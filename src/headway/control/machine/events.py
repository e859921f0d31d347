"""Everything that can happen to a run, beside what workers and users say (:mod:`headway.core.messages`), and everything
that is done about it. Plain values; :mod:`headway.control.machine.transitions` turns the ones into the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Literal

from headway.control.machine.report_rounds import UNKNOWN, ClosedRound, ReportRound, SaveHabits
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


# --- what can happen ---


@dataclass(frozen=True, slots=True)
class BeginEvent:
    """Start the (next) attempt."""


@dataclass(frozen=True, slots=True)
class LaunchedEvent:
    """The engine is bringing up this many workers, whose first report has this number."""

    attempt: int
    num_workers: int
    first_seq: int
    habits: SaveHabits = UNKNOWN


@dataclass(frozen=True, slots=True)
class LaunchFailedEvent:
    """``lost``: the run is in other hands."""

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
    """``lost``: the run is in other hands."""

    attempt: int
    seq: int
    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class CommitSkippedEvent:
    """Storage had nothing to do: the checkpoint in question is not there any more."""

    attempt: int
    seq: int


@dataclass(frozen=True, slots=True)
class SaveFinishedEvent:
    """What this rank was about to bring to storage when its process ended is there now, or is lost."""

    attempt: int
    rank: int
    seq: int
    arrived: bool


@dataclass(frozen=True, slots=True)
class DeadlineEvent:
    """The time that was allowed is over: to come up, to leave together, to stop."""

    attempt: int


@dataclass(frozen=True, slots=True)
class OverdueEvent:
    """The files of this round have waited long enough for ranks that may never come; ``long``: very long."""

    attempt: int
    seq: int
    long: bool = False


@dataclass(frozen=True, slots=True)
class SaveDueEvent:
    """Tracked state has not been saved for as long as the user wants it to be."""

    attempt: int


@dataclass(frozen=True, slots=True)
class PreemptedEvent:
    """These ranks are told to leave, in so many seconds if that is known."""

    attempt: int
    ranks: frozenset[int]
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class StalledEvent:
    """The ranks have stood still for longer than the user allows; ``text`` says what they wait for."""

    attempt: int
    rank: int | None
    text: str


@dataclass(frozen=True, slots=True)
class ValidationDoneEvent:
    """The validation of this checkpoint is over, however it went. It belongs to the run, not to an attempt."""

    path: PurePath
    validation: ValidationRecord


Answer = (
    LaunchedEvent
    | LaunchFailedEvent
    | CommitDoneEvent
    | CommitFailedEvent
    | CommitSkippedEvent
    | SaveFinishedEvent
    | DeadlineEvent
    | OverdueEvent
    | SaveDueEvent
    | PreemptedEvent
    | StalledEvent
)
Event = FromWorker | BeginEvent | AbortEvent | StopEvent | TerminateEvent | CapacityEvent | ValidationDoneEvent | Answer


# --- what is done ---


@dataclass(frozen=True, slots=True)
class LaunchWorkers:
    attempt: int


@dataclass(frozen=True, slots=True)
class AssignRanks:
    """All are here: deal out ranks and send each its Start."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RecordReport:
    rank: int
    report: Report


@dataclass(frozen=True, slots=True)
class CloseRound:
    """A round is over; ``commit`` says that its files shall become a checkpoint."""

    attempt: int
    closed: ClosedRound
    commit: bool


@dataclass(frozen=True, slots=True)
class ExtendCheckpoint:
    """Files came after their round had closed: add them to its checkpoint, or make one of them."""

    attempt: int
    round: ReportRound


@dataclass(frozen=True, slots=True)
class RecoverFiles:
    """A process has ended while files that it had reported were on their way: bring them. SaveFinished will follow."""

    attempt: int
    rank: int
    seq: int


@dataclass(frozen=True, slots=True)
class WithdrawCheckpoint:
    """The checkpoint of this round was committed in good faith and is not whole: remove it."""

    seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class AnswerUploadRequest:
    """Answer this rank's claim with a place."""

    rank: int
    claim: UploadRequest


@dataclass(frozen=True, slots=True)
class SendMessage:
    rank: int
    message: ToWorker


@dataclass(frozen=True, slots=True)
class StartValidation:
    """Have this checkpoint validated; ValidationDone will follow."""

    saved: SavedCheckpoint


@dataclass(frozen=True, slots=True)
class CancelValidations:
    """End every validation, whatever it does; they stay pending, and are taken up when the run is opened again."""


@dataclass(frozen=True, slots=True)
class SendCheckpointList:
    """Tell this rank which checkpoints there are: it has asked, and now is the time."""

    rank: int
    index: int


@dataclass(frozen=True, slots=True)
class InterruptWorkers:
    """Ask every worker's Python to stop."""


@dataclass(frozen=True, slots=True)
class KillWorkers:
    """End every process of this attempt, whatever it does."""


@dataclass(frozen=True, slots=True)
class SetDeadline:
    """There is one: a new one replaces it, None takes it back. ``awaited``: until then, files wait for these ranks."""

    after_s: float | None
    awaited: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class AnnouncePreemption:
    """Tell all workers that these ranks are told to leave, and when."""

    ranks: frozenset[int]
    within_s: float


@dataclass(frozen=True, slots=True)
class ScheduleAttempt:
    """Begin after a pause."""

    after_s: float


@dataclass(frozen=True, slots=True)
class RecordRetry:
    """This attempt is over and another will begin."""

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
    | RecordReport
    | CloseRound
    | ExtendCheckpoint
    | RecoverFiles
    | WithdrawCheckpoint
    | AnswerUploadRequest
    | StartValidation
    | CancelValidations
    | SendCheckpointList
    | SendMessage
    | InterruptWorkers
    | KillWorkers
    | SetDeadline
    | AnnouncePreemption
    | ScheduleAttempt
    | RecordRetry
    | EndRun
)
