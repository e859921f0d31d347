"""The machine, step by step: single histories; tests/exhaustive explores all orders of events."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, TypeVar

from headway.control.machine import transitions
from headway.control.machine.events import (
    Action,
    BeginEvent,
    CommitCheckpoint,
    CommitDoneEvent,
    DropFiles,
    LaunchedEvent,
    SendMessage,
)
from headway.control.machine.retry_policy import RetryBudgets
from headway.control.machine.state import MachineState
from headway.core.checkpoints import Manifest, SavedCheckpoint, ValidationRecord
from headway.core.messages import (
    AutosaveEnabled,
    FilesDiscarded,
    FromWorker,
    FunctionReturned,
    Ready,
    Report,
    SaveStarted,
    ToController,
)

A = TypeVar("A")


class Machine:
    """A machine whose first attempt is running, and the actions of its last step."""

    def __init__(self, num_workers: int = 1, max_failures: int = 0) -> None:
        self.run = MachineState(RetryBudgets(max_failures), (num_workers, num_workers))
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


def saved(seq: int, *ranks: int, num_workers: int = 1, validation: ValidationRecord | None = None) -> SavedCheckpoint:
    name = f"checkpoint_{seq:06d}"
    manifest = Manifest(
        number=seq,
        name=name,
        seq=seq,
        attempt=1,
        world_size=num_workers,
        ranks=list(ranks or (0,)),
        metrics={},
        files={},
        time=0.0,
    )
    return SavedCheckpoint(PurePath("/r") / name, manifest, validation=validation)


def test_tracked_state_is_committed_only_with_the_files_of_ranks_that_returned_before() -> None:
    machine = Machine(2)
    for rank in (0, 1):
        machine.says(rank, AutosaveEnabled())
    for rank in (0, 1):
        machine.save(rank, "epoch 0")
    assert [each.round.givers for each in machine.took(CommitCheckpoint)] == [(0, 1)]
    machine.do(CommitDoneEvent(1, 0, saved(0, 0, 1, num_workers=2)))
    machine.says(0, FunctionReturned(value=b""))
    machine.save(1, "epoch 1")
    assert machine.took(CommitCheckpoint) == []
    assert [(each.closed.partial, each.closed.returned) for each in machine.took(DropFiles)] == [((0,), (0,))]
    assert (1, FilesDiscarded(seq=1)) in machine.sent(FilesDiscarded), "rank 1 does not wait for this commit"


def test_files_of_the_user_are_committed_without_ranks_that_returned_before() -> None:
    machine = Machine(2)
    machine.report(0, files=True)
    machine.report(1, files=True)
    machine.do(CommitDoneEvent(1, 0, saved(0, 0, 1, num_workers=2)))
    machine.says(0, FunctionReturned(value=b""))
    machine.report(1, files=True)
    assert [each.round.givers for each in machine.took(CommitCheckpoint)] == [(1,)]
