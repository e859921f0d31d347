"""The machine, step by step: single histories; tests/exhaustive explores all orders of events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pytest

from headway.control.machine import shutdown, transitions
from headway.control.machine.checkpoint_table import CheckpointTable, KeptCheckpoints
from headway.control.machine.events import (
    Action,
    BeginEvent,
    CommitCheckpoint,
    CommitDoneEvent,
    DropFiles,
    EndRun,
    ExtendCheckpoint,
    LaunchedEvent,
    OverdueEvent,
    PreemptedEvent,
    RecordRetry,
    RecordRound,
    RecordValidation,
    RetireCheckpoint,
    RunState,
    SaveFinishedEvent,
    ScheduleAttempt,
    SendMessage,
    SetDeadline,
    ValidationDoneEvent,
)
from headway.control.machine.report_rounds import GIVER_WINDOW, ROUND_WINDOW
from headway.control.machine.retry_policy import RetryBudgets
from headway.control.machine.state import MachineState
from headway.core.checkpoints import ValidationRecord
from headway.core.config import CheckpointConfig
from headway.core.messages import (
    AbortEvent,
    AutosaveEnabled,
    CapacityEvent,
    CheckpointCommitted,
    FilesDiscarded,
    FilesStaged,
    FromWorker,
    FunctionFailed,
    FunctionReturned,
    Ready,
    Report,
    SaveStarted,
    StopEvent,
    TerminateEvent,
    ToController,
    WorkerExited,
)
from headway.core.validation import ReportedCheckpointStatus
from support import saved_as

A = TypeVar("A")


class Machine:
    """A machine whose first attempt is running, and the actions of its last step."""

    def __init__(self, num_workers: int = 1, max_failures: int = 0, num_to_keep: int | None = None) -> None:
        kept = KeptCheckpoints(config=CheckpointConfig(num_to_keep=num_to_keep))
        table = CheckpointTable(kept)
        self.run = MachineState(RetryBudgets(max_failures), (num_workers, num_workers), checkpoints=table)
        self.actions: tuple[Action, ...] = ()
        self.do(BeginEvent())
        self.start(num_workers)

    def start(self, num_workers: int = 1) -> None:
        """Launch the workers of the attempt; all of them become ready."""
        self.do(LaunchedEvent(self.run.attempt.number, num_workers))
        for rank in range(num_workers):
            self.says(rank, Ready(host="h", pid=rank + 1))

    def do(self, event: Any) -> None:
        self.run, self.actions = transitions.step(self.run, event)

    def says(self, rank: int, message: ToController) -> None:
        self.do(FromWorker(self.run.attempt.number, rank, message))

    def report(self, rank: int, *, files: bool = False, pending: bool = False, metrics: bytes = b"{}") -> None:
        seq = self.run.attempt.rounds.passed[rank]
        self.says(rank, Report(seq, 0.0, metrics, staged=files, pending=pending))

    def save(self, rank: int, place: str) -> None:
        """Report tracked state."""
        self.says(rank, SaveStarted(place=place))
        self.report(rank, files=True)

    def took(self, kind: type[A]) -> list[A]:
        """Return the actions of this type in the last step."""
        return [action for action in self.actions if isinstance(action, kind)]

    def sent(self, kind: type[A]) -> list[tuple[int, A]]:
        """Return the messages of this type that were sent in the last step, by rank."""
        return [(each.rank, each.message) for each in self.took(SendMessage) if isinstance(each.message, kind)]


def test_tracked_state_is_committed_only_with_the_files_of_ranks_that_returned_before() -> None:
    machine = Machine(2)
    for rank in (0, 1):
        machine.says(rank, AutosaveEnabled())
    for rank in (0, 1):
        machine.save(rank, "epoch 0")
    assert [each.round.givers for each in machine.took(CommitCheckpoint)] == [(0, 1)]
    machine.do(CommitDoneEvent(1, 0, saved_as(0, ranks=(0, 1), world_size=2)))
    machine.says(0, FunctionReturned(value=b""))
    machine.save(1, "epoch 1")
    assert machine.took(CommitCheckpoint) == []
    assert [(each.closed.partial, each.closed.returned) for each in machine.took(DropFiles)] == [((0,), (0,))]
    assert (1, FilesDiscarded(seq=1)) in machine.sent(FilesDiscarded), "rank 1 does not wait for this commit"


def test_files_of_the_user_are_committed_without_ranks_that_returned_before() -> None:
    machine = Machine(2)
    machine.report(0, files=True)
    machine.report(1, files=True)
    machine.do(CommitDoneEvent(1, 0, saved_as(0, ranks=(0, 1), world_size=2)))
    machine.says(0, FunctionReturned(value=b""))
    machine.report(1, files=True)
    assert [each.round.givers for each in machine.took(CommitCheckpoint)] == [(1,)]


def pending_while_others_report(machine: Machine, num_workers: int, num_reports: int = ROUND_WINDOW + 10) -> None:
    """All ranks report files that are still pending, and then only metrics."""
    for rank in range(num_workers):
        machine.report(rank, pending=True, metrics=b'{"loss": 0.1}')
    for _ in range(num_reports):
        for rank in range(num_workers):
            machine.report(rank, metrics=b'{"loss": 0.9}')
            assert machine.took(RecordRound) == [], "rounds close in order, and this save is not complete"


def test_a_checkpoint_keeps_the_metrics_of_its_report_however_many_reports_follow() -> None:
    machine = Machine()
    pending_while_others_report(machine, 1)
    machine.says(0, FilesStaged(seq=0))
    [commit] = machine.took(CommitCheckpoint)
    [report] = commit.round.reports
    assert report is not None
    assert (report.metrics, report.staged, report.pending) == (b'{"loss": 0.1}', True, False)
    assert len(machine.took(RecordRound)) == ROUND_WINDOW + 11


def test_pending_files_of_several_ranks_are_committed_together_however_many_reports_follow() -> None:
    machine = Machine(2)
    pending_while_others_report(machine, 2)
    machine.says(0, FilesStaged(seq=0))
    assert machine.took(CommitCheckpoint) == []
    machine.says(1, FilesStaged(seq=0))
    assert [each.round.givers for each in machine.took(CommitCheckpoint)] == [(0, 1)]


def test_a_round_that_is_closed_before_its_pending_files_came_is_dropped() -> None:
    """Even if no rank's files have come: otherwise those of the first rank would become a checkpoint."""
    machine = Machine(2)
    for rank in (0, 1):
        machine.report(rank, pending=True)
    for _ in range(GIVER_WINDOW):
        for rank in (0, 1):
            machine.report(rank, files=True)
    assert machine.took(DropFiles) == []
    machine.report(0, files=True)
    assert [each.closed.partial for each in machine.took(DropFiles)] == [(0, 1)]
    for rank in (0, 1):
        machine.says(rank, FilesStaged(seq=0))
        assert machine.took(CommitCheckpoint) == []
        assert (rank, FilesDiscarded(seq=0)) in machine.sent(FilesDiscarded)


def test_pending_files_that_are_lost_with_their_rank_leave_no_part_of_a_checkpoint() -> None:
    machine = Machine(2, max_failures=1)
    pending_while_others_report(machine, 2)
    machine.says(0, FilesStaged(seq=0))
    machine.says(1, WorkerExited(code=-9))
    machine.do(SaveFinishedEvent(1, 1, 0, arrived=False))
    machine.says(0, WorkerExited(code=-9))
    assert machine.took(CommitCheckpoint) == []
    assert machine.run.attempt.number == 2
    assert machine.run.attempt.first_seq == 0


def test_staged_files_of_a_report_that_was_dropped_are_ignored() -> None:
    """An interrupt hit the worker between two reports: one of them is lost, and the next is out of order."""
    machine = Machine()
    machine.do(StopEvent())
    machine.says(0, Report(1, 0.0, b"{}", pending=True))
    before = machine.run
    machine.says(0, FilesStaged(seq=1))
    assert (machine.run, machine.actions) == (before, ())


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (TerminateEvent(), RunState.PREEMPTED),
        (StopEvent(), RunState.STOPPED),
        (AbortEvent(), RunState.ABORTED),
    ],
)
def test_a_request_to_end_in_the_pause_before_a_retry_is_no_failure(event: Any, state: RunState) -> None:
    machine = Machine(max_failures=-1)
    machine.says(0, WorkerExited(code=-9))
    while not machine.took(ScheduleAttempt):
        machine.start()
        machine.says(0, WorkerExited(code=-9))
    [retry] = machine.took(RecordRetry)
    assert len(retry.failures) == 1
    machine.do(event)
    assert machine.took(EndRun) == [EndRun(state)], "the failures were recorded with the retry"
    machine.do(BeginEvent())
    assert machine.run.state is state


def test_a_validation_that_ends_together_with_the_run_is_recorded() -> None:
    machine = Machine()
    machine.report(0, files=True)
    checkpoint = saved_as(0, validation=ValidationRecord())
    machine.do(CommitDoneEvent(1, 0, checkpoint))
    machine.says(0, FunctionFailed(kind="ValueError", message="bad", traceback=""))
    machine.says(0, WorkerExited(code=1))
    assert machine.run.state is RunState.FAILED
    done = ValidationRecord(status=ReportedCheckpointStatus.VALIDATED, metrics={"accuracy": 1.0})
    machine.do(ValidationDoneEvent(checkpoint.path, done))
    [record] = machine.actions
    assert isinstance(record, RecordValidation)
    assert record.saved is not None
    assert (record.path, record.validation, record.saved.validation) == (checkpoint.path, done, done)
    assert machine.run.state is RunState.FAILED


def test_a_rank_is_not_given_the_path_of_a_checkpoint_that_was_retired_meanwhile() -> None:
    """Its late files are being added to a checkpoint when a newer one replaces it."""
    machine = Machine(2, num_to_keep=1)
    machine.report(0, files=True)
    machine.do(OverdueEvent(1, 0))
    machine.do(CommitDoneEvent(1, 0, saved_as(0, world_size=2)))
    assert machine.sent(CheckpointCommitted) != []
    machine.report(1, files=True)
    assert len(machine.took(ExtendCheckpoint)) == 1
    for rank in (0, 1):
        machine.report(rank, files=True)
    machine.do(CommitDoneEvent(1, 1, saved_as(1, ranks=(0, 1), world_size=2)))
    assert [each.saved.seq for each in machine.took(RetireCheckpoint)] == [0]
    machine.do(CommitDoneEvent(1, 0, saved_as(0, ranks=(0, 1), world_size=2)))
    assert machine.sent(CheckpointCommitted) == []
    assert [rank for rank, _ in machine.sent(FilesDiscarded)] == [0, 1]


def test_a_later_request_to_leave_does_not_prolong_the_deadline_of_a_preemption() -> None:
    machine = Machine()
    machine.says(0, AutosaveEnabled())
    for event, after_s in ((PreemptedEvent(1, frozenset({0}), 5.0), 5.0), (StopEvent(), shutdown.STOP_S)):
        machine.do(event)
        assert machine.took(SetDeadline) == [SetDeadline(after_s, shortens=True)]


def test_a_run_with_fewer_workers_than_fit_is_resized_only_after_the_next_report_of_capacity() -> None:
    """A worker could not be started. A restart at once would launch the same number."""
    machine = Machine(2, max_failures=-1)
    machine.run = replace(machine.run, sizes=(1, 2))
    machine.do(CapacityEvent(2))
    for rank in (0, 1):
        machine.says(rank, WorkerExited(code=-9))
    machine.do(BeginEvent())
    machine.start(1)
    assert machine.run.state is RunState.RUNNING
    assert machine.run.attempt.departure is None
    machine.do(CapacityEvent(2))
    assert machine.run.attempt.leaving == "resize"
