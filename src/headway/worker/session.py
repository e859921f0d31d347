"""The session of a worker, which ``headway.train`` functions use inside a training function. One per process.

Session ── reports     numbers and sends reports ── gate   delays them while ranks agree where to save
        ├─ saves       stages the files of reports
        ├─ committed   reads committed checkpoints
        ├─ data        positions and statistics of the datasets
        ├─ requests    sends requests and waits for answers
        └─ progress    the content of the heartbeat
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, assert_never

from headway.core.errors import SessionError
from headway.core.messages import (
    BarrierArrival,
    BarrierRelease,
    CheckpointCommitted,
    CheckpointInfo,
    CheckpointList,
    CommonBatchCount,
    ExitAllowed,
    FilesDiscarded,
    PreemptionWarning,
    RequestNextReport,
    RequestStacks,
    SaveAtReport,
    Start,
    ToWorker,
    UploadGrant,
)
from headway.core.task import Task
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.run.report_backlog import ReportBacklog
from headway.worker.checkpoint.readable_checkpoints import CommittedCheckpoints
from headway.worker.checkpoint.saves import CheckpointSaves
from headway.worker.connection import Connection
from headway.worker.data_client import DataClient
from headway.worker.heartbeat import RankProgress
from headway.worker.report_gate import ReportGate
from headway.worker.reports import ReportSender
from headway.worker.requests import PendingRequests
from headway.worker.run_storage import RunStorage
from headway.worker.stack_reporter import StackReporter

COMMIT_WAIT_S = 1.0  # how long to wait for the commit of the last report, which may depend on other ranks

_active: Session | None = None
_is_forked = False  # whether this process is a child of the worker, such as a loader process

H = TypeVar("H")


class Session:
    """One worker's part in one attempt."""

    def __init__(
        self, start: Start, connection: Connection, on_save_failed: Callable[[BaseException], None] = lambda error: None
    ) -> None:
        """Create the session of an attempt.

        Args:
            start: The worker's ranks, its run, and where to resume.
            connection: The connection to the controller.
            on_save_failed: Called with the error that a background save raised.
        """
        self.rank = start.rank
        self.place = start.place
        self.run = start.run
        self.alone = connection.alone  # whether this is the user's process
        self.progress = RankProgress()
        self.requests = PendingRequests(connection, self.progress)
        self.storage = RunStorage(start.run)
        self.data = DataClient(self.requests, start.cursors)
        self.committed = CommittedCheckpoints(start, self.storage, self.requests, self.progress)
        self._saves = CheckpointSaves(
            start.rank,
            start.run,
            self.storage,
            self.requests,
            self.progress,
            on_failed=on_save_failed,
            single_thread=connection.alone,
        )
        self._gate = ReportGate(self.requests, start.first_seq)
        backlog: ReportBacklog | None = None
        if not connection.alone and start.run.root in (
            "",
            start.run.path,
        ):  # otherwise no checkpoint outlives the driver
            backlog = ReportBacklog(self.storage.path, start.run.attempt, start.rank)
        self.reports = ReportSender(
            connection, self._gate, self._saves, self.committed, self.data, backlog, start.first_seq
        )
        self._stacks = StackReporter(self.progress.heartbeat, connection.send)
        self._is_persistent = start.stays
        self.task = Task(call=lambda: None)  # the user's function; opened by open_task()
        self._helpers: dict[type, Any] = {}
        self._at_end: list[Callable[[], None]] = [backlog.close] if backlog is not None else []
        self.preemption: PreemptionWarning | None = None  # the ranks that will be preempted, if any
        self.is_over = False  # whether the functions of all ranks have returned

    def open_task(self, unpack: Callable[[], Task]) -> Task:
        """Unpickle the user's function; modules that it imports may already use this session."""
        with self.progress.phase("importing the function"):
            self.task = unpack()
        return self.task

    def helper(self, kind: type[H], create: Callable[[], H] | None = None) -> H:
        """Return an object that ``headway.train`` keeps for this session: one per class, created at first use."""
        if kind not in self._helpers:
            self._helpers[kind] = create() if create is not None else kind()
        found: H = self._helpers[kind]
        return found

    def call_at_end(self, close: Callable[[], None]) -> None:
        """Call this when the function has ended, whatever its outcome."""
        self._at_end.append(close)

    def close(self) -> None:
        """End the session: send the held report, if any, and run the registered callbacks."""
        with contextlib.suppress(OSError):
            self.reports.send_held(None)
        for close in self._at_end:
            close()

    # --- checkpoints ---

    def newest_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint to which this rank contributed, or else the one it started from.

        This waits until the checkpoints it reported are committed; only briefly if that depends on other ranks.
        """
        self._save_held_if_single()
        self._saves.wait_until_committed(None if self.run.num_workers == 1 else COMMIT_WAIT_S)
        return self.committed.newest()

    def kept_checkpoints(self, *, validated: bool, timeout_s: float | None) -> tuple[CheckpointInfo, ...]:
        """Return all checkpoints that the run keeps, once this rank's last one is committed.

        Args:
            validated: Whether to wait until all validations have ended.
            timeout_s: The maximum time to wait.
        """
        self._save_held_if_single()
        return self.committed.kept(self._saves.last_seq, validated=validated, timeout_s=timeout_s)

    def _save_held_if_single(self) -> None:
        """Save the held report if there is only one rank.

        With several ranks, all must save at the same point, but possibly only one of them asks for checkpoints.
        """
        if self.run.num_workers == 1:
            self.reports.save_held()

    def wait_for_saves(self) -> None:
        """Wait until all checkpoints are in the run's storage; the function has not ended until then."""
        self.committed.release_first()
        self.reports.save_held()
        self._saves.wait_until_staged()

    # --- other ranks ---

    def barrier(self, kind: str, data: bytes = b"") -> bytes:
        """Wait for all ranks at their next barrier; return rank 0's data."""
        if self.place.world_size != self.run.num_workers:
            raise SessionError(f"{kind} cannot reach ranks that torchrun has started: use torch.distributed there")
        self.progress.meetings += 1
        return self.requests.ask(
            BarrierRelease, lambda index: BarrierArrival(index=index, kind=kind, data=data), "barrier"
        ).data

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Announce a phase in which silence is expected; the controller is notified immediately."""
        with self.progress.phase(name):
            self.requests.tell(self.progress.heartbeat())
            yield
        self.requests.tell(self.progress.heartbeat())

    def wait_for_exit(self) -> None:
        """Wait until the functions of all ranks have returned."""
        self.requests.wait("exit", lambda: self.is_over)

    # --- messages from the controller ---

    def receive(self, message: ToWorker) -> None:
        """Handle a message; called by the connection's thread."""
        match message:
            case CheckpointCommitted(seq=seq, path=path):
                if self._saves.on_committed(seq):
                    self.committed.on_committed(path)
            case FilesDiscarded(seq=seq):
                self._saves.on_discarded(seq)
            case RequestNextReport():
                self._gate.on_request_next_report(message)
            case SaveAtReport():
                self._gate.on_save_at_report(message)
            case RequestStacks(index=index):
                self._stacks.request(index)
            case PreemptionWarning():
                self.preemption = message
            case UploadGrant() | BarrierRelease() | CheckpointList():
                self.requests.on_answer(message)
            case CommonBatchCount():
                self.data.on_common_batch_count(message)
            case ExitAllowed():
                self.is_over = True
                if self._is_persistent:  # otherwise the process ends soon, and may be asked what delays its exit
                    self._stacks.close()
            case Start():
                raise AssertionError("a session is started once")
            case _:
                assert_never(message)


@contextlib.contextmanager
def active(session: Session) -> Iterator[None]:
    """Make this the session of user code."""
    global _active
    if _active is not None:
        raise SessionError("this process already runs a training function: inline runs cannot overlap")
    _active = session
    try:
        yield
    finally:
        _active = None


def _after_fork() -> None:
    global _is_forked
    _is_forked = _active is not None


os.register_at_fork(after_in_child=_after_fork)


def running_task() -> Task | None:
    """The task whose function runs in this process; None outside a training function."""
    return _active.task if _active is not None else None


def current(caller: str) -> Session:
    """Return the session of this process, or raise SessionError, which explains where to call ``caller``."""
    if _active is None:
        raise SessionError(
            f"{caller}() was called outside a training function: call it in the function that a trainer runs"
        )
    if _is_forked:
        raise SessionError(f"{caller}() was called in a child of the worker's process: call it in the worker itself")
    return _active
