"""The session of a worker: what the functions of ``headway.train`` use inside a training function. One per process.

Session ── reports     numbers reports and sends them ── gate   holds them back while ranks agree where to save
        ├─ saves       stages the files of reports
        ├─ committed   reads committed checkpoints
        ├─ data        positions and statistics of the datasets
        ├─ requests    sends requests and waits for answers
        └─ progress    what the heartbeat says
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
from headway.worker.checkpoint.committed import CommittedCheckpoints
from headway.worker.checkpoint.saves import CheckpointSaves
from headway.worker.connection import Connection
from headway.worker.data_client import DataClient
from headway.worker.heartbeat import RankProgress
from headway.worker.report_gate import ReportGate
from headway.worker.reports import ReportSender
from headway.worker.requests import PendingRequests
from headway.worker.run_storage import RunStorage
from headway.worker.stack_reporter import StackReporter

COMMIT_WAIT_S = 1.0  # for the commit of what was just reported, which may depend on other ranks

_active: Session | None = None
_is_forked = False  # whether this process is a child of the worker, such as a loader process

H = TypeVar("H")


class Session:
    """One worker's part in one attempt."""

    def __init__(
        self, start: Start, connection: Connection, on_save_failed: Callable[[BaseException], None] = lambda error: None
    ) -> None:
        """The session of an attempt.

        Args:
            start: The worker's ranks, its run, and where to resume.
            connection: Leads to the controller.
            on_save_failed: Called with what a save in the background raised.
        """
        self.rank = start.rank
        self.place = start.place
        self.run = start.run
        self.alone = connection.alone  # whether this is the user's own process
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
        self.preemption: PreemptionWarning | None = None  # which ranks will be preempted, if any
        self.is_over = False  # whether the functions of all ranks have returned

    def open_task(self, unpack: Callable[[], Task]) -> Task:
        """Unpickle the user's function; what it imports may use this session already."""
        with self.progress.phase("importing the function"):
            self.task = unpack()
        return self.task

    def helper(self, kind: type[H], create: Callable[[], H] | None = None) -> H:
        """What a part of ``headway.train`` keeps for this session: one object per class, created at the first use."""
        if kind not in self._helpers:
            self._helpers[kind] = create() if create is not None else kind()
        found: H = self._helpers[kind]
        return found

    def call_at_end(self, close: Callable[[], None]) -> None:
        """Call this when the function is over, whatever its outcome."""
        self._at_end.append(close)

    def close(self) -> None:
        """The function is over: send what is held, end what has been started."""
        with contextlib.suppress(OSError):
            self.reports.send_held(None)
        for close in self._at_end:
            close()

    # --- checkpoints ---

    def newest_checkpoint(self) -> Checkpoint | None:
        """What this rank began with, or the newest checkpoint that it had a part in.

        What it has just reported has a moment to be committed, as long as that may depend on other ranks.
        """
        self._save_held_if_single()
        self._saves.wait_until_committed(None if self.run.num_workers == 1 else COMMIT_WAIT_S)
        return self.committed.newest()

    def kept_checkpoints(self, *, validated: bool, timeout_s: float | None) -> tuple[CheckpointInfo, ...]:
        """All that the run keeps when this rank's last one is committed, and all validations have ended.

        Args:
            validated: Whether to wait for validations.
            timeout_s: Wait no longer than this.
        """
        self._save_held_if_single()
        return self.committed.kept(self._saves.last_seq, validated=validated, timeout_s=timeout_s)

    def _save_held_if_single(self) -> None:
        """All ranks must save at the same place, but only one of them may ask for checkpoints."""
        if self.run.num_workers == 1:
            self.reports.save_held()

    def wait_for_saves(self) -> None:
        """Wait until all checkpoints are on the run's storage: the function is not over before."""
        self.committed.release_first()
        self.reports.save_held()
        self._saves.wait_until_staged()

    # --- other ranks ---

    def barrier(self, kind: str, data: bytes = b"") -> bytes:
        """Wait for all ranks at their next barrier; returns rank 0's data."""
        if self.place.world_size != self.run.num_workers:
            raise SessionError(f"{kind} cannot reach ranks that torchrun has started: use torch.distributed there")
        self.progress.meetings += 1
        return self.requests.ask(
            BarrierRelease, lambda index: BarrierArrival(index=index, kind=kind, data=data), "barrier"
        ).data

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Announce a phase in which silence is expected; the controller is notified at once."""
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
                if self._is_persistent:  # else its process ends soon, and may be asked what keeps it
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
        raise SessionError("this process runs a training function already: inline runs cannot overlap")
    _active = session
    try:
        yield
    finally:
        _active = None


def _after_fork() -> None:
    global _is_forked
    _is_forked = _active is not None


os.register_at_fork(after_in_child=_after_fork)


def current(caller: str) -> Session:
    """The session of this process; SessionError says where ``caller`` belongs."""
    if _active is None:
        raise SessionError(
            f"{caller}() was called outside a training function: call it in the function that a trainer runs"
        )
    if _is_forked:
        raise SessionError(f"{caller}() was called in a child of the worker's process: call it in the worker itself")
    return _active
