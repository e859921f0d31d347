"""What a training function's calls end up in: one per worker process, the only module state we have."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Protocol

import cloudpickle

from headway.core.errors import ConfigError, SessionError, StorageError
from headway.core.messages import (
    AutosaveEnabled,
    BarrierArrival,
    BarrierRelease,
    BatchCount,
    CheckpointCommitted,
    CheckpointInfo,
    CheckpointList,
    CheckpointQuery,
    CommonBatchCount,
    DataStats,
    ExitAllowed,
    FilesDiscarded,
    FilesStaged,
    NextReport,
    PreemptionWarning,
    RequestNextReport,
    RequestStacks,
    SaveAtReport,
    SaveStarted,
    Start,
    ToWorker,
    UploadGrant,
    UploadRequest,
)
from headway.core.schema.data_cursor import DataCursor
from headway.core.schema.data_stats import DatasetStats
from headway.core.security.signing import Key
from headway.core.task import Task
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.staging import Note, lock_of
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.upload import folder_key
from headway.storage.run import layout
from headway.storage.run.report_backlog import ReportBacklog
from headway.worker.checkpoint.background import Background
from headway.worker.checkpoint.local import Saver, Wish
from headway.worker.checkpoint.object_store import Uploader
from headway.worker.connection import Connection
from headway.worker.heartbeat import Progress
from headway.worker.interrupt_guard import heed, speaking
from headway.worker.metrics_json import encode_metrics
from headway.worker.stack_reporter import Observer

_logger = logging.getLogger(__name__)

UNREAD = (
    "a checkpoint was saved, and the one that the run goes on from was never read: without "
    "train.get_checkpoint() or train.track() the function begins anew. Where that is meant, ignore it"
)
COMMIT_WAIT_S = 1.0
IN_FLIGHT = 4  # saves that may lie in staging; more are made only as fast as storage commits them
THROTTLE_S = 5.0  # but no longer than that: whoever must commit them may be waiting for us

_active: Session | None = None
_forked = False  # whether this process is a child of the worker's, say one of its loader processes


class Later:
    """The answer of state that saves itself, but not at this place: the report waits for it."""


class Autosave(Protocol):
    """State that saves itself."""

    def on_report(self, seq: int, must: bool, leave: bool) -> tuple[Checkpoint, Wish] | Later | None:
        """What this report saves. After ``Later``, it waits for ``Session.settle``, or for the next report.

        ``must``: a save is wanted. ``leave``: by ranks that leave after it.
        """

    def on_demand(self) -> tuple[Checkpoint, Wish] | None:
        """What the report that waits saves now, if training can be resumed from here."""


@dataclass(frozen=True)
class Held:
    """A report that waits for its files."""

    seq: int
    time: float
    metrics: bytes


class Leave(SystemExit):
    """All ranks leave in this report; their state is saved."""


class Session:
    """One worker's part in one attempt."""

    def __init__(
        self, start: Start, link: Connection, failed: Callable[[BaseException], None] = lambda error: None
    ) -> None:
        self.rank = start.rank
        self.place = start.place
        self.run = start.run
        self._root = Path(start.run.root or start.run.path)
        self._lock = lock_of(self._root)
        self.task = Task(call=lambda: None)  # what this worker runs; set when the function has been imported
        self.autosave: Autosave | None = None  # what saves itself
        self.extras: dict[str, Any] = {}  # what a framework's helpers keep for this session
        self.cursors = start.cursors  # where each dataset is resumed
        self.positions: Callable[[], dict[str, Any]] = dict  # where each dataset is
        self.figures: Callable[[], dict[str, DatasetStats]] = dict  # statistics of each dataset
        self.at_end: list[Callable[[], None]] = []
        self.progress = Progress()
        self._observer = Observer(self.progress.pulse, link.send)
        self._stays = start.stays
        self.preemption: PreemptionWarning | None = None  # who is told to leave, if anybody
        self._link = link
        self._next_seq = start.first_seq
        self._reporting = threading.RLock()
        self._held: Held | None = None
        self._background = Background(self._arrived, failed, alone=link.alone)
        self._arriving = threading.Lock()
        self._reported: set[int] = set()  # reports with files that the controller has been sent
        self._early: set[int] = set()  # files that were there before their report was
        self._first = start.checkpoint
        self._unread = start.checkpoint is not None and start.rank == 0  # nobody has asked for what we began with
        self._checkpoint: Checkpoint | None = None  # the newest since then that we had a part in
        self._num_claims = 0
        self._granted: dict[int, UploadGrant] = {}
        self._holding: contextlib.ExitStack | None = None  # on to this machine's copy of the first checkpoint
        self._pending: set[int] = set()  # reports of ours with files of which a checkpoint may yet come
        self._last_save: int | None = None  # the newest report of ours with files
        self._num_questions = 0
        self._answers: dict[int, tuple[CheckpointInfo, ...] | None] = {}  # None: asked, not answered yet
        self._position = threading.Lock()  # over the next two, which the link's thread looks at too
        self._entered = start.first_seq - 1  # the newest report that was begun
        self._limit: int | None = None  # the first report that must wait until a number is agreed on
        self._save_at: set[int] = set()
        self._leave_at: int | None = None
        self._num_meetings = 0
        self._released: dict[int, bytes] = {}
        self._horizons: dict[tuple[str, int], CommonBatchCount] = {}
        self._dismissed = False
        self._backlog: ReportBacklog | None = None
        if not link.alone and start.run.root in ("", start.run.path):  # else no checkpoint outlives the driver
            self._backlog = ReportBacklog(Path(start.run.path), start.run.attempt, start.rank)
            self.at_end.append(self._backlog.close)

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: object = None,
        wish: Wish | None = None,
        validation: dict[str, Any] | None = None,
    ) -> None:
        text = encode_metrics(metrics)
        if self._holding is not None:
            self._let_go()
        with self._reporting:
            self.settle(None)
            seq = self._next_seq
            self._enter(seq)
            if checkpoint is None and self.autosave is not None:
                leave = self._leave_at is not None and seq >= self._leave_at
                found = self.autosave.on_report(seq, seq in self._save_at, leave)
                if isinstance(found, Later):
                    self._held, self._next_seq = Held(seq, time.time(), text), seq + 1
                    return
                checkpoint, wish = found or (None, None)
            self._send(Held(seq, time.time(), text), checkpoint, wish, validation)
        self._leave_if_agreed(seq)

    @property
    def holds_report(self) -> bool:
        """Whether a report waits for its files."""
        return self._held is not None

    def settle(self, saved: tuple[Checkpoint, Wish] | None) -> None:
        """Send the report that waits, if any; without files where they are needed for a later one."""
        with self._reporting:
            held, self._held = self._held, None
            if held is None:
                return
            checkpoint, wish = saved or (None, None)
            self._send(held, checkpoint, wish, None)
        if saved is not None:
            self._leave_if_agreed(held.seq)

    def _settle_now(self) -> None:
        """Send the report that waits, with files if training can be resumed from here."""
        with self._reporting:
            if self._held is not None and self.autosave is not None:
                self.settle(self.autosave.on_demand())

    def _settle_if_alone(self) -> None:
        """Only one rank may ask for checkpoints, and all must save at the same place."""
        if self.run.num_workers == 1:
            self._settle_now()

    def _send(self, report: Held, checkpoint: object, wish: Wish | None, validation: dict[str, Any] | None) -> None:
        seq = report.seq
        positions = self.positions()
        cursor = json.dumps(positions).encode() if positions else b""
        wish = replace(wish or Wish(), positions=positions) if checkpoint is not None else wish
        if self._backlog is not None:  # before the save: a checkpoint that is kept has all its reports
            self._backlog.add(seq, report.time, report.metrics)
        there = checkpoint is not None and self._save(checkpoint, seq, report.metrics, wish or Wish(), validation)
        with speaking:
            pending = checkpoint is not None and not there
            self._link.report(seq, report.time, report.metrics, there, pending, cursor)
            self._next_seq = seq + 1
        if pending:
            self._told(seq)
        heed()

    def _leave_if_agreed(self, seq: int) -> None:
        if self._leave_at is not None and seq >= self._leave_at:
            raise Leave(0)

    def _enter(self, seq: int) -> None:
        """Begin a report; not beyond what we have said we would, while all ranks look for a number."""
        while True:
            with self._position:
                if self._limit is None or seq < self._limit:
                    self._entered = seq
                    return
            self._link.wait(lambda: self._limit is None)

    def _approach(self, index: int) -> None:
        with self._position:
            following = self._entered + 1
            self._limit = following + 1
        self._link.send(NextReport(index=index, seq=following))

    def _save(
        self, checkpoint: object, seq: int, metrics: bytes, wish: Wish, validation: dict[str, Any] | None
    ) -> bool:
        """True when its files are on the run's storage, False when they are on their way there."""
        if not isinstance(checkpoint, Checkpoint):
            kind = type(checkpoint).__name__
            raise ConfigError(
                f"checkpoint must be a Checkpoint, got {kind}: use Checkpoint.from_directory(path) or from_dict(data)"
            )
        self._say_if_unread()
        self._link.send(SaveStarted(taken=self.progress.how_far(), place=wish.place))
        heed()
        with self.progress.phase("saving a checkpoint"):
            note = Note(
                self.run.num_workers,
                json.loads(metrics),
                validation=validation,
                cursor=_noted(wish),
                unproven=not (wish.scratch or checkpoint.may_be_signed()),
            )
            self._link.wait(lambda: len(self._pending) < IN_FLIGHT, THROTTLE_S)
            there = self._saver.save(checkpoint, seq, note, wish)
        self._pending.add(seq)
        self._last_save = seq
        return there

    def _say_if_unread(self) -> None:
        """Who saves without having read what was saved before has begun from scratch, whatever the console said."""
        if self._unread:
            self._unread = False
            _logger.warning(UNREAD)

    def _arrived(self, seq: int) -> None:
        """Files that a report has promised are there; it may be quicker than the report itself."""
        with self._arriving:
            if seq in self._reported:
                self._link.send(FilesStaged(seq=seq))
            else:
                self._early.add(seq)

    def _told(self, seq: int) -> None:
        with self._arriving:
            self._reported.add(seq)
            if seq in self._early:
                self._link.send(FilesStaged(seq=seq))

    @property
    def key(self) -> Key:
        """Proves to the run, and to later ones, that we have written something."""
        return Key(self.run.key)

    @property
    def alone(self) -> bool:
        """Whether this is the user's own process."""
        return self._link.alone

    @property
    def next_seq(self) -> int:
        """The number of the report that comes next."""
        return self._next_seq

    @functools.cached_property
    def store(self) -> ObjectStore | None:
        """The object store that the run is in; it begins at the run."""
        return cloudpickle.loads(self.run.store) if self.run.store else None

    @functools.cached_property
    def _saver(self) -> Saver | Uploader:
        if self.store is not None:
            spool = Path(self.run.path)
            return Uploader(self.store, self.run.attempt, self.rank, self._claim, self._background, spool, self.key)
        return Saver(self._root, self.run.attempt, self.rank, self._background, self.key, self._lock)

    def _claim(self, seq: int, name: str | None, files: tuple[str, ...]) -> UploadGrant:
        """Where our files go, and which of them."""
        with self._position:
            index = self._num_claims
            self._num_claims += 1
        self._link.send(UploadRequest(index=index, seq=seq, name=name, files=files))
        heed()
        self._link.wait(lambda: index in self._granted)
        return self._granted.pop(index)

    def check_storage(self) -> None:
        """That we see what the driver sees. Its mark is the run's id, which is in ``run.json``."""
        try:
            if self.store is not None:
                mark = self.store.read(layout.DESCRIPTION)
            else:
                mark = Path(self.run.path, layout.DESCRIPTION).read_bytes()
        except FileNotFoundError:
            mark = b""
        if self.run.id.encode() not in mark:
            where = self.store.url if self.store is not None else self.run.path
            raise StorageError(
                f"rank {self.rank} on {socket.gethostname()} does not see the run at {where}: "
                "choose a storage_path that every machine sees, a shared folder or an object store"
            )

    def track(self, autosave: Autosave) -> None:
        """From now on this saves itself, when we are told to and when it likes."""
        self.autosave = autosave
        self._link.send(AutosaveEnabled())
        heed()

    def is_over(self) -> bool:
        return self._dismissed

    def wait_for_saves(self) -> None:
        """The function is over when its checkpoints are on the run's storage."""
        self._let_go()
        self._settle_now()
        with self.progress.phase("saving a checkpoint"):
            self._background.wait()

    def newest_checkpoint(self) -> Checkpoint | None:
        """What this rank began with, or the newest that it had a part in.

        What it has just reported is given a moment to be committed, as long as that may depend on others.
        """
        self._unread = False
        self._settle_if_alone()
        patience = None if self.run.num_workers == 1 else COMMIT_WAIT_S
        with self.progress.phase("waiting for a checkpoint"):
            self._link.wait(lambda: not self._pending, patience)
        if self._checkpoint is None and self._first is not None:
            first: Checkpoint = cloudpickle.loads(self._first)
            self._checkpoint = first.proven_by(self.key, trust=self.run.trust)
            self._hold(self._checkpoint)
        return self._checkpoint

    def _hold(self, first: Checkpoint) -> None:
        """Whoever downloads it first has downloaded it for all ranks of this machine, the slow ones too."""
        self._holding = contextlib.ExitStack()
        self._holding.enter_context(first.kept_here())

    def _let_go(self) -> None:
        """We have reported, or are through: what we began with is read."""
        if self._holding is not None:
            self._holding.close()
            self._holding = None

    def committed(self, path: str) -> Checkpoint:
        """A checkpoint of this run, by what the controller calls it."""
        name = PurePath(path).name
        return Checkpoint.of(
            path if self.store is None else self.store.at(folder_key(name)), trust=self.run.trust, key=self.key
        )

    def checkpoints(self, *, validated: bool, timeout_s: float | None) -> tuple[CheckpointInfo, ...]:
        """Those there are when this rank's last one is, and all validations are over; or when the time is."""
        self._unread = False
        self._settle_if_alone()
        began = time.monotonic()
        found = self._all_saved(timeout_s)
        if not validated:
            return found
        left_s = None if timeout_s is None else max(0.0, began + timeout_s - time.monotonic())
        with self.progress.phase("waiting for validations"):
            return self._asked(left_s, validated=True)

    def _all_saved(self, timeout_s: float | None) -> tuple[CheckpointInfo, ...]:
        """Who is in here waits for other ranks: that is how :mod:`headway.diagnosis.activity` knows."""
        return self._asked(timeout_s)

    def _asked(self, timeout_s: float | None, *, validated: bool = False) -> tuple[CheckpointInfo, ...]:
        index = self._num_questions
        self._num_questions += 1
        self._answers[index] = None

        def answered() -> bool:
            return self._answers[index] is not None

        self._link.send(CheckpointQuery(index=index, after=self._last_save, validated=validated))
        heed()
        if not self._link.wait(answered, timeout_s):
            self._link.send(CheckpointQuery(index=index))
            heed()
            self._link.wait(answered)
        return self._answers.pop(index) or ()

    def meet(self, kind: str, data: bytes = b"") -> bytes:
        """Wait for all ranks at their next common point; gives rank 0's data."""
        if self.place.world_size != self.run.num_workers:
            raise SessionError(f"{kind} cannot reach ranks that torchrun has started: use torch.distributed there")
        index = self._num_meetings
        self._num_meetings += 1
        self.progress.meetings += 1
        self._link.send(BarrierArrival(index=index, kind=kind, data=data))
        heed()
        self._link.wait(lambda: index in self._released)
        return self._released.pop(index)

    def has_batches(self, dataset: str, epoch: int, count: int, *, ended: bool) -> None:
        """Tell the others how many batches of an epoch we have, as far as we know."""
        self._link.send(BatchCount(dataset=dataset, epoch=epoch, count=count, ended=ended))
        heed()

    def all_have_batch(self, dataset: str, epoch: int, number: int) -> bool:
        """Whether every rank has this one; waits until that is known."""
        key = (dataset, epoch)

        def known() -> bool:
            horizon = self._horizons.get(key)
            return horizon is not None and (horizon.count > number or horizon.last)

        if not known():
            self._link.wait(known)
        return self._horizons[key].count > number

    def tell_figures(self) -> None:
        """How our data pipelines do; may be called by any thread."""
        figures = self.figures()
        if figures:
            text = json.dumps({name: stats.to_json() for name, stats in figures.items()}).encode()
            self._link.send(DataStats(text=text), ring=False)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Silence is to be expected in here; the controller hears of it at once."""
        with self.progress.phase(name):
            self._link.send(self.progress.pulse())
            heed()
            yield
        self._link.send(self.progress.pulse())
        heed()

    def wait_for_dismissal(self) -> None:
        self._link.wait(lambda: self._dismissed)

    def receive(self, message: ToWorker) -> None:
        """A word from the controller."""
        match message:
            case CheckpointCommitted(seq=seq, path=path):
                if seq in self._pending:
                    self._pending.difference_update([other for other in tuple(self._pending) if other <= seq])
                    self._checkpoint = self.committed(path)
            case FilesDiscarded(seq=seq):
                self._pending.discard(seq)
            case RequestNextReport(index=index):
                self._approach(index)
            case RequestStacks(index=index):
                self._observer.ask(index)
            case PreemptionWarning():
                self.preemption = message
            case SaveAtReport(seq=seq, leave=leave):
                if seq is not None:
                    self._save_at.add(seq)
                    self._leave_at = seq if leave else self._leave_at
                self._limit = None
            case UploadGrant(index=index):
                self._granted[index] = message
            case BarrierRelease(index=index, data=data):
                self._released[index] = data
            case CheckpointList(index=index, found=found):
                if index in self._answers:
                    self._answers[index] = found
            case CommonBatchCount():
                self._horizons[message.dataset, message.epoch] = message
            case ExitAllowed():
                self._dismissed = True
                if self._stays:  # else its process ends soon, and may be asked what keeps it
                    self._observer.close()
            case Start():
                raise AssertionError("a session is started once")


def _noted(wish: Wish) -> DataCursor:
    """The position in the data, for those who find the files without having received the report."""
    datasets: dict[str, object] = {name: {"position": position} for name, position in wish.positions.items()}
    return replace(wish.cursor, datasets=datasets or None)


@contextlib.contextmanager
def active(session: Session) -> Iterator[None]:
    """Make this the session that user code finds."""
    global _active
    if _active is not None:
        raise SessionError("this process runs a training function already: inline runs cannot overlap")
    _active = session
    try:
        yield
    finally:
        _active = None


def _in_child() -> None:
    global _forked
    _forked = _active is not None


os.register_at_fork(after_in_child=_in_child)


def current(caller: str) -> Session:
    """The session, or a sentence that says where ``caller`` belongs."""
    if _active is None:
        raise SessionError(
            f"{caller}() was called outside a training function: call it in the function that a trainer runs"
        )
    if _forked:
        raise SessionError(f"{caller}() was called in a child of the worker's process: call it in the worker itself")
    return _active
