"""A run at one moment: frozen, and everything that the machine knows of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from headway.control.machine.barrier import Barriers
from headway.control.machine.checkpoint_queries import CheckpointQueries
from headway.control.machine.events import Action, RunState, SendMessage
from headway.control.machine.report_rounds import ReportRounds
from headway.control.machine.retry_policy import Failure, FailureHistory, RetryBudgets
from headway.control.machine.save_agreement import SaveAgreement
from headway.core.messages import ToWorker

# Why all ranks are to leave, though nothing has failed. resize: to be more, or fewer · preempt: some are told to leave
# terminate: the driver is told to leave · stop: the user has seen enough
Leaving = Literal["resize", "preempt", "terminate", "stop"]

# Why we stop; a later reason replaces one that stands further left.
Why = Literal["finish", "resize", "preempt", "terminate", "stop", "fail", "abort"]
WEIGHT: dict[Why | None, int] = {
    None: 0,
    "finish": 1,
    "resize": 2,
    "preempt": 3,
    "terminate": 4,
    "stop": 5,
    "fail": 6,
    "abort": 7,
}
ASKED: frozenset[Why | None] = frozenset({"resize", "preempt", "terminate", "stop", "abort"})  # we asked them to go


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What we know of one process: it is ready, its function is over, it has left."""

    ready: bool = False
    over: bool = False
    early: bool = False  # over, because all were to leave
    left: bool = False


_NO_ROUNDS = ReportRounds(0, ())
_NO_MEETINGS = Barriers(0)
_NO_QUESTIONS = CheckpointQueries()
_ONCE = RetryBudgets()
_NO_HISTORY = FailureHistory()


@dataclass(frozen=True)
class MachineState:
    # --- of the run, from attempt to attempt ---
    budgets: RetryBudgets = _ONCE
    sizes: tuple[int, int] = (1, 1)  # how few workers, and how many
    state: RunState = RunState.WAITING
    attempt: int = 0
    history: FailureHistory = _NO_HISTORY
    furthest: int = 0  # the first report number that no attempt has reached
    capacity: int | None = None  # how many workers could run, as far as we have been told
    validating: frozenset[PurePath] = frozenset()  # checkpoints whose validation is asked for and not over
    # --- of the attempt ---
    workers: tuple[WorkerState, ...] | None = None  # None: the launch has not been answered yet
    rounds: ReportRounds = _NO_ROUNDS
    meetings: Barriers = _NO_MEETINGS
    num_commits: int = 0  # asked of storage and not answered yet
    progress: bool = False  # whether it has got further than any before
    why: Why | None = None
    killed: bool = False
    failures: tuple[Failure, ...] = ()  # the first one first
    dumped: frozenset[int] = frozenset()  # ranks whose stacks we have, now that something has failed
    hasty: bool = False  # whether the others are killed as soon as we have their stacks
    patient: bool = False  # or are given time to complete a checkpoint
    questions: CheckpointQueries = _NO_QUESTIONS
    answered: int = -1  # the newest round that storage has answered
    trackers: frozenset[int] = frozenset()  # ranks whose state saves itself
    agreement: SaveAgreement | None = None  # that is being looked for
    num_agreements: int = 0
    leaving: Leaving | None = None  # all ranks are to leave
    leave_at: int | None = None  # in this report
    preempted: frozenset[int] = frozenset()  # ranks that are told to leave
    late: bool = False  # the time to leave was over before all had left
    final: bool = False  # whatever goes wrong from now on, there is no other attempt
    hurried: bool = False  # the user wants out at once: validations are not waited for, nor begun


Step = tuple[MachineState, tuple[Action, ...]]


def changed(run: MachineState, **changes: Any) -> MachineState:
    """Like ``dataclasses.replace``, in a thirtieth of the time: every report comes by here."""
    other = object.__new__(MachineState)
    vars(other).update(vars(run), **changes)
    assert len(vars(other)) == len(vars(run)), f"a run has no such field: {changes.keys() - vars(run).keys()}"
    return other


def marked(run: MachineState, rank: int, worker: WorkerState) -> MachineState:
    workers = run.workers or ()
    return changed(run, workers=(*workers[:rank], worker, *workers[rank + 1 :]))


def present(run: MachineState) -> Iterator[tuple[int, WorkerState]]:
    """The ranks whose processes have not left, as far as we know."""
    return ((rank, worker) for rank, worker in enumerate(run.workers or ()) if not worker.left)


def to_all(run: MachineState, message: ToWorker) -> tuple[Action, ...]:
    return tuple(SendMessage(rank, message) for rank, _ in present(run))


def tracks(run: MachineState) -> bool:
    """Whether the state of every rank saves itself, and all are still at work."""
    workers = run.workers or ()
    at_work = run.state is RunState.RUNNING and not any(worker.over or worker.left for worker in workers)
    return at_work and len(run.trackers) == len(workers)


def all_have_reported(run: MachineState, first_seq: int) -> bool:
    """Whether every rank has reported in this attempt, or will not: then each has read what it began with."""
    workers = run.workers or ()
    return run.state is not RunState.STARTING and all(
        next_seq > first_seq or worker.over or worker.left
        for next_seq, worker in zip(run.rounds.passed, workers, strict=False)
    )
