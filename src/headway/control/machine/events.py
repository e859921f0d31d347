"""Everything that can happen to a run, beside what workers and users say (:mod:`headway.core.messages`), and everything
that is done about it. Plain values; :mod:`headway.control.machine.transitions` turns the ones into the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Literal

from headway.control.machine.report_rounds import UNKNOWN, Closed, Habits, Round
from headway.control.machine.retry_policy import Failure
from headway.core.messages import Abort, Capacity, Claim, FromWorker, Report, StopRequested, Terminate, ToWorker
from headway.storage.checkpoint.commit import Saved
from headway.storage.checkpoint.validation_record import Validation


class State(StrEnum):
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


ENDS = frozenset({State.FINISHED, State.STOPPED, State.PREEMPTED, State.FAILED, State.ABORTED})


# --- what can happen ---


@dataclass(frozen=True, slots=True)
class Begin:
    """Start the (next) attempt."""


@dataclass(frozen=True, slots=True)
class Launched:
    """The engine is bringing up this many workers, whose first report has this number."""

    attempt: int
    num_workers: int
    first_seq: int
    habits: Habits = UNKNOWN


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """``lost``: the run is in other hands."""

    attempt: int
    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class CommitDone:
    """Storage has made this round's files a checkpoint."""

    attempt: int
    seq: int
    saved: Saved


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """``lost``: the run is in other hands."""

    attempt: int
    seq: int
    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class CommitSkipped:
    """Storage had nothing to do: the checkpoint in question is not there any more."""

    attempt: int
    seq: int


@dataclass(frozen=True, slots=True)
class SaveFinished:
    """What this rank was about to bring to storage when its process ended is there now, or is lost."""

    attempt: int
    rank: int
    seq: int
    arrived: bool


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time that was allowed is over: to come up, to leave together, to stop."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """The files of this round have waited long enough for ranks that may never come; ``long``: very long."""

    attempt: int
    seq: int
    long: bool = False


@dataclass(frozen=True, slots=True)
class SaveDue:
    """Tracked state has not been saved for as long as the user wants it to be."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Notified:
    """These ranks are told to leave, in so many seconds if that is known."""

    attempt: int
    ranks: frozenset[int]
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stalled:
    """The ranks have stood still for longer than the user allows; ``text`` says what they wait for."""

    attempt: int
    rank: int | None
    text: str


@dataclass(frozen=True, slots=True)
class ValidationDone:
    """The validation of this checkpoint is over, however it went. It belongs to the run, not to an attempt."""

    path: PurePath
    validation: Validation


Answer = (
    Launched
    | LaunchFailed
    | CommitDone
    | CommitFailed
    | CommitSkipped
    | SaveFinished
    | Deadline
    | Overdue
    | SaveDue
    | Notified
    | Stalled
)
Event = FromWorker | Begin | Abort | StopRequested | Terminate | Capacity | ValidationDone | Answer


# --- what is done ---


@dataclass(frozen=True, slots=True)
class Launch:
    attempt: int


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """All are here: deal out ranks and send each its Start."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Record:
    rank: int
    report: Report


@dataclass(frozen=True, slots=True)
class Close:
    """A round is over; ``commit`` says that its files shall become a checkpoint."""

    attempt: int
    closed: Closed
    commit: bool


@dataclass(frozen=True, slots=True)
class Extend:
    """Files came after their round had closed: add them to its checkpoint, or make one of them."""

    attempt: int
    round: Round


@dataclass(frozen=True, slots=True)
class FinishSave:
    """A process has ended while files that it had reported were on their way: bring them. SaveFinished will follow."""

    attempt: int
    rank: int
    seq: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The checkpoint of this round was committed in good faith and is not whole: remove it."""

    seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class Allot:
    """Answer this rank's claim with a place."""

    rank: int
    claim: Claim


@dataclass(frozen=True, slots=True)
class Send:
    rank: int
    message: ToWorker


@dataclass(frozen=True, slots=True)
class Validate:
    """Have this checkpoint validated; ValidationDone will follow."""

    saved: Saved


@dataclass(frozen=True, slots=True)
class EndValidations:
    """End every validation, whatever it does; they stay pending, and are taken up when the run is opened again."""


@dataclass(frozen=True, slots=True)
class ShowCheckpoints:
    """Tell this rank which checkpoints there are: it has asked, and now is the time."""

    rank: int
    index: int


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Ask every worker's Python to stop."""


@dataclass(frozen=True, slots=True)
class Kill:
    """End every process of this attempt, whatever it does."""


@dataclass(frozen=True, slots=True)
class SetDeadline:
    """There is one: a new one replaces it, None takes it back. ``awaited``: until then, files wait for these ranks."""

    after_s: float | None
    awaited: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell all workers that these ranks are told to leave, and when."""

    ranks: frozenset[int]
    within_s: float


@dataclass(frozen=True, slots=True)
class BeginLater:
    """Begin after a pause."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Retried:
    """This attempt is over and another will begin."""

    failures: tuple[Failure, ...] = ()
    why: Literal["fail", "preempt", "resize"] = "fail"
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class End:
    state: State
    failures: tuple[Failure, ...] = ()


Action = (
    Launch
    | StartWorkers
    | Record
    | Close
    | Extend
    | FinishSave
    | Withdraw
    | Allot
    | Validate
    | EndValidations
    | ShowCheckpoints
    | Send
    | Interrupt
    | Kill
    | SetDeadline
    | Announce
    | BeginLater
    | Retried
    | End
)
