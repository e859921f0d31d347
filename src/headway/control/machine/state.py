"""The state of a run: everything that the state machine knows, as frozen values.

MachineState          kept from attempt to attempt: budgets, history, checkpoints, pending validations
  └─ AttemptState     one attempt: its workers, rounds, barriers, queries
       ├─ Departure   all ranks are to leave, though nothing has failed
       └─ Stop        the attempt is being ended: why, and what the processes may do before they are killed
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import PurePath
from typing import Any, Literal, TypeVar

from headway.control.machine.barrier import Barriers
from headway.control.machine.checkpoint_queries import CheckpointQueries
from headway.control.machine.checkpoint_table import CheckpointTable
from headway.control.machine.events import Action, RunState, SendMessage
from headway.control.machine.report_rounds import ReportRounds
from headway.control.machine.retry_policy import Failure, FailureHistory, RetryBudgets
from headway.control.machine.save_agreement import SaveAgreement
from headway.core.messages import ToWorker

# Why all ranks are to leave, though nothing has failed. resize: the number of workers changes · preempt: some of them
# are preempted · terminate: the driver received SIGTERM · stop: the user stops the run
Leaving = Literal["resize", "preempt", "terminate", "stop"]

# Why an attempt is ended. A reason replaces the reasons to its left.
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
REQUESTED: frozenset[Why | None] = frozenset({"resize", "preempt", "terminate", "stop", "abort"})


class Grace(IntEnum):
    """The grace that the processes of an ending attempt get before they are killed."""

    DEADLINE = 0  # run until the deadline
    CHECKPOINT = 1  # complete a checkpoint that other ranks have started
    STACKS = 2  # send their stacks, because one of them has died
    KILLED = 3  # nothing: they have been killed


class ExitRequest(IntEnum):
    """The user's request to end this program, by urgency."""

    NONE = 0
    NO_MORE_ATTEMPTS = 1
    NO_MORE_VALIDATIONS = 2  # nor attempts; pending validations wait until the run is next opened


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The state of one worker process."""

    ready: bool = False
    over: bool = False  # its function returned or raised
    early: bool = False  # it returned because all ranks were to leave
    left: bool = False  # the process has exited


@dataclass(frozen=True, slots=True)
class Departure:
    """A request that all ranks leave, in report ``at_report`` once they have agreed on one."""

    why: Leaving
    at_report: int | None = None
    timed_out: bool = False  # they did not leave in time


@dataclass(frozen=True, slots=True)
class Stop:
    """The reason and the progress of ending an attempt. ``dumped``: ranks that have sent stacks since the failure."""

    why: Why
    grace: Grace = Grace.DEADLINE
    failures: tuple[Failure, ...] = ()  # in order of arrival
    dumped: frozenset[int] = frozenset()


_NO_ROUNDS = ReportRounds(0, ())
_NO_BARRIERS = Barriers(0)
_NO_QUERIES = CheckpointQueries()


@dataclass(frozen=True)
class AttemptState:
    """One attempt.

    Args:
        number: Its number, counted over the life of the run; 0 before the first attempt.
        first_seq: Number of its first report.
        furthest_before: The first report number that no earlier attempt reached.
        workers: Its processes; None until the launch is answered.
        has_read: Whether every rank has read the checkpoint that it started from.
        rounds: Its reports.
        barriers: The barrier at which its ranks wait for each other.
        queries: Queries for checkpoints that have not been answered yet.
        trackers: Ranks whose state can be saved in any report.
        agreement: The search for a report in which all ranks save.
        num_agreements: Searches so far.
        preempted: Ranks that will be preempted.
        departure: Set when all ranks are to leave.
        stop: Set when the attempt is being ended.
    """

    number: int = 0
    first_seq: int = 0
    furthest_before: int = 0
    workers: tuple[WorkerState, ...] | None = None
    has_read: bool = False
    rounds: ReportRounds = _NO_ROUNDS
    barriers: Barriers = _NO_BARRIERS
    queries: CheckpointQueries = _NO_QUERIES
    trackers: frozenset[int] = frozenset()
    agreement: SaveAgreement | None = None
    num_agreements: int = 0
    preempted: frozenset[int] = frozenset()
    departure: Departure | None = None
    stop: Stop | None = None

    @property
    def why(self) -> Why | None:
        return self.stop.why if self.stop else None

    @property
    def leaving(self) -> Leaving | None:
        return self.departure.why if self.departure else None

    @property
    def failures(self) -> tuple[Failure, ...]:
        return self.stop.failures if self.stop else ()

    @property
    def killed(self) -> bool:
        return self.stop is not None and self.stop.grace is Grace.KILLED

    @property
    def is_stop_requested(self) -> bool:
        """Whether the processes were asked to end, as opposed to failing by themselves."""
        return self.why in REQUESTED

    def present(self) -> Iterator[tuple[int, WorkerState]]:
        """Yield the ranks whose processes have not been reported as exited."""
        return ((rank, worker) for rank, worker in enumerate(self.workers or ()) if not worker.left)

    def all_have_reported(self) -> bool:
        """Whether every rank has reported or will never report, so that none still reads the start checkpoint."""
        return all(
            next_seq > self.first_seq or worker.over or worker.left
            for next_seq, worker in zip(self.rounds.passed, self.workers or (), strict=False)
        )


@dataclass(frozen=True)
class MachineState:
    """A run.

    Args:
        budgets: The number of failures of each kind that the run survives.
        sizes: Minimum and maximum number of workers.
        state: The state in its life cycle.
        history: Failures so far.
        furthest: The first report number that no attempt has reached.
        capacity: The number of workers that could run; None if the engine has not reported it.
        validating: Checkpoints whose validation was requested but has not ended.
        checkpoints: All checkpoints.
        exit_request: How soon the user wants this program to end.
        attempt: The current attempt.
    """

    budgets: RetryBudgets = field(default_factory=RetryBudgets)
    sizes: tuple[int, int] = (1, 1)
    state: RunState = RunState.WAITING
    history: FailureHistory = field(default_factory=FailureHistory)
    furthest: int = 0
    capacity: int | None = None
    validating: frozenset[PurePath] = frozenset()
    checkpoints: CheckpointTable = field(default_factory=CheckpointTable)
    exit_request: ExitRequest = ExitRequest.NONE
    attempt: AttemptState = field(default_factory=AttemptState)


Step = tuple[MachineState, tuple[Action, ...]]
S = TypeVar("S", MachineState, AttemptState)


def changed(value: S, **changes: Any) -> S:
    """Like ``dataclasses.replace``, but thirty times as fast, because it is called several times per report."""
    other = object.__new__(type(value))
    vars(other).update(vars(value), **changes)
    assert len(vars(other)) == len(vars(value)), f"no such field: {changes.keys() - vars(value).keys()}"
    return other


def in_attempt(run: MachineState, **changes: Any) -> MachineState:
    """Return the run with these changes to its current attempt."""
    return changed(run, attempt=changed(run.attempt, **changes))


def with_worker(run: MachineState, rank: int, worker: WorkerState) -> MachineState:
    workers = run.attempt.workers or ()
    return in_attempt(run, workers=(*workers[:rank], worker, *workers[rank + 1 :]))


def to_all(run: MachineState, message: ToWorker) -> tuple[Action, ...]:
    return tuple(SendMessage(rank, message) for rank, _ in run.attempt.present())


def can_save_anytime(run: MachineState) -> bool:
    """Whether every rank has tracked state and is still working, so that all can save in any report."""
    workers = run.attempt.workers or ()
    at_work = run.state is RunState.RUNNING and not any(worker.over or worker.left for worker in workers)
    return at_work and len(run.attempt.trackers) == len(workers)
