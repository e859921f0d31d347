"""The replay of one rank of a failed attempt: alone, in this process, from where the attempt started.

    failures/attempt-002/ ──▶ Replay ──▶ Start ──▶ worker ──▶ the function
                                                     ▲ │ reports, collectives
                                                     │ ▼
                                                    _Alone: answers immediately, keeps nothing

The run itself is only read. Whatever the function reports, saves or writes into the run's directory goes to a temporary
directory instead. The data of the other ranks is missing (:mod:`headway.frameworks.torch_single_process`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import io
import json
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

import cloudpickle

from headway.control.machine.retry_policy import Failure
from headway.control.narration.failure_recorder import versions
from headway.control.narration.failure_text import sentence
from headway.control.workers import ranks
from headway.control.workers.start_message import process_setup
from headway.core import phrases
from headway.core.checkpoints import SavedCheckpoint
from headway.core.errors import AloneError, ConfigError, HeadwayError, StorageError
from headway.core.messages import (
    BarrierArrival,
    BarrierRelease,
    BatchCount,
    CheckpointInfo,
    CheckpointList,
    CheckpointQuery,
    CommonBatchCount,
    FilesStaged,
    FunctionFailed,
    ProcessSetup,
    RankAssignment,
    Start,
    ToController,
    ToWorker,
)
from headway.core.process.temp_directories import OwnedDirectory
from headway.core.schema.data_cursor import DatasetCursor
from headway.core.schema.failure_summary import FailureSummary, ReplayScene
from headway.core.security.signing import Key, user_key
from headway.core.task import Task
from headway.core.validation import ReportedCheckpointStatus
from headway.diagnosis.replay_info import place, run_info
from headway.engine.resources import hardware
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.object_store.client_selection import is_remote
from headway.storage.run import failure_bundle, layout
from headway.storage.run.failure_bundle import StoredFailure
from headway.storage.run.reader import RunReader
from headway.train.collective import BROADCAST
from headway.worker.main import run_function, unpack_task
from headway.worker.process.setup import apply_setup, seed_random
from headway.worker.report_gate import AgreedStop
from headway.worker.session import Session

MARGIN = 2  # reports after the last one of the attempt, after which a failure is no longer expected

Tell = Callable[[str], None]
Examine = Callable[[BaseException], None]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A prepared replay.

    Args:
        record: The run.
        failure: The failed attempt.
        task: The packed function, verified together with the summary of the failure.
        rank: The rank to replay.
        first_seq: The number of its first report.
        checkpoint: The checkpoint to start from.
        remarks: Differences from the original attempt.
    """

    record: RunReader
    failure: StoredFailure
    task: bytes = field(repr=False)
    rank: int
    first_seq: int
    checkpoint: Checkpoint | None
    remarks: tuple[str, ...] = ()

    @property
    def summary(self) -> FailureSummary:
        return self.failure.summary

    @property
    def scene(self) -> ReplayScene:
        assert self.summary.scene is not None, "find() refuses attempts without it"
        return self.summary.scene

    @property
    def cursors(self) -> dict[str, DatasetCursor]:
        """The positions of the datasets in the checkpoint from which the replay starts."""
        before = [saved for saved in self.record.checkpoints() if saved.manifest.seq < self.first_seq]
        return before[-1].manifest.cursor.of_datasets() if before else {}

    @property
    def last_seq(self) -> int:
        """The report at which a replay without a failure stops, a few after the last report of the failed rank."""
        reports, failed, none = self.summary.reports, self.summary.rank, (self.summary.first_seq or 0) - 1
        then = max(reports.values(), default=none) if failed is None else reports.get(str(failed), none)
        return then + MARGIN

    @property
    def cause(self) -> str:
        """A description of this rank's failure; empty if it did not fail."""
        return next((each.cause for each in self.summary.failures or () if each.rank == self.rank), "")


@dataclass(frozen=True)
class Ending:
    """How the replay ended: the function raised, was stopped at report ``stopped_at``, or returned."""

    failed: FunctionFailed | None = None
    stopped_at: int | None = None

    def cause(self, rank: int) -> str:
        return sentence([Failure("raised", rank, self.failed)]) if self.failed is not None else ""


# --- what is replayed ---


def find(record: RunReader, rank: int | None = None, attempt: int | None = None, *, trust: bool = False) -> Replay:
    """Find the attempt and the rank to replay: by default the newest failed attempt, and the rank that failed first.

    Files that the bundle refers to (for example by a checkpoint's URI) are opened only if the bundle is proven to come
    from the user's own run, or with ``trust``.
    """
    if record.is_copy:
        raise StorageError(f"{record.url} is in an object store, but only runs in a local directory can be replayed")
    failure = StoredFailure.read(_failure_directory(record, attempt))
    summary = failure.summary
    if summary.scene is None:
        raise StorageError(
            f"the workers of attempt {summary.attempt} did not start, so there is nothing to replay (see headway why)"
        )
    chosen = _rank(summary, rank)
    task = failure.task(user_key().for_run(record.description.id), trust=trust)
    kept = record.checkpoints()
    first_seq, checkpoint, remark = start_from(summary, kept, record.path, record.checkpoint_backend.checkpoint)
    remarks = [remark, *_differences(summary, summary.scene, place(summary.scene, chosen))]
    if checkpoint is None and chosen != 0:
        remarks.append("there is no checkpoint to start from: random weights are this rank's, not rank 0's")
    return Replay(
        record=record,
        failure=failure,
        task=task,
        rank=chosen,
        first_seq=first_seq,
        checkpoint=checkpoint,
        remarks=tuple(filter(None, remarks)),
    )


def _failure_directory(record: RunReader, attempt: int | None) -> Path:
    found = {
        failure_bundle.summary(directory).attempt: directory
        for directory in record.failures()
        if _is_failure(directory)
    }
    if not found:
        raise StorageError(f"run {record.name} has no failed attempt to replay: see headway why {record.url}")
    if attempt is None:
        return found[max(found)]
    if attempt not in found:
        known = ", ".join(map(str, sorted(found)))
        raise ConfigError(f"attempt {attempt} of run {record.name} is not one of its failed attempts: {known}")
    return found[attempt]


def _is_failure(directory: Path) -> bool:
    return not failure_bundle.summary(directory).is_stall


def _rank(summary: FailureSummary, rank: int | None) -> int:
    chosen = summary.rank if rank is None else rank
    if chosen is None:
        raise ConfigError("no single rank caused this failure: choose one with --rank")
    if not 0 <= chosen < summary.num_workers:
        raise ConfigError(f"--rank must be one of the {summary.num_workers} ranks of that attempt, got {chosen}")
    return chosen


def start_from(
    summary: FailureSummary,
    kept: Sequence[SavedCheckpoint],
    run: Path,
    open_checkpoint: Callable[[PurePath], Checkpoint],
) -> tuple[int, Checkpoint | None, str]:
    """Return the first report, the checkpoint to start from, and a remark about it."""
    first_seq, then = summary.first_seq or 0, summary.checkpoint
    if first_seq == 0 or then is None:  # before the run's first checkpoint
        return 0, _given(then, run) if then is not None else None, ""
    before = [saved for saved in kept if saved.manifest.seq < first_seq]
    name = PurePath(then).name
    if not before:
        raise StorageError(
            f"attempt {summary.attempt} started from {name}, which no longer exists, and there is no older checkpoint"
        )
    newest = before[-1]
    gone = newest.manifest.seq + 1 < first_seq
    remark = f"{name} no longer exists: starting from the older {newest.path.name}" if gone else ""
    return newest.manifest.seq + 1, open_checkpoint(newest.path), remark


def _given(then: str, run: Path) -> Checkpoint:
    """Return the ``resume_from_checkpoint``: the run's copy of a dict, or the user's checkpoint."""
    if PurePath(then).name == layout.FIRST:
        return Checkpoint(str(run / layout.FIRST))
    if not is_remote(then) and not os.path.isdir(then):
        raise StorageError(f"the attempt started from {then}, which no longer exists")
    return Checkpoint(then)


def _differences(summary: FailureSummary, scene: ReplayScene, then: RankAssignment) -> Iterator[str]:
    """Yield the known differences from the attempt."""
    for name, now in versions().items():
        if (version := summary.versions.get(name, now)) != now:
            yield f"the attempt used {name} {version}, this process uses {now}"
    if then.gpus and not hardware.gpus():
        yield "this machine has no GPU: computing on the CPU"
    cwd = scene.cwd
    if not os.path.isdir(cwd):
        yield f"the attempt's working directory no longer exists ({cwd}): running in {os.getcwd()}"
    if missing := set(scene.env_vars) - process_setup({}).env.keys():
        yield f"environment variables that were set in the run but are not set now: {', '.join(sorted(missing))}"


# --- running it ---


def run(replay: Replay, *, trust: bool, tell: Tell, examine: Examine = lambda error: None) -> Ending:
    """Replay the rank in this process. ``examine`` is called with the exception that the function raises.

    ``trust``: open pickles of the checkpoint even if another user may have written them.
    """
    key = user_key().for_run(replay.record.description.id)
    with _temporary_directory() as directory:
        start = _start(replay, _scratch(replay.record, directory), key, trust=trust)
        _become(start, replay.scene.preload)
        link = _Alone(replay, start, tell)
        session = Session(start, link)
        link.listen(session.receive)
        obstacles: list[HeadwayError] = []
        unpacked = functools.partial(_unpacked, replay, examine, obstacles)
        outcome = run_function(start, session, unpacked, rendezvous=None, lasting=True)
    if obstacles:
        raise obstacles[0]
    return Ending(outcome if isinstance(outcome, FunctionFailed) else None, link.stopped_at)


@contextlib.contextmanager
def _temporary_directory() -> Iterator[Path]:
    """Create a temporary directory. A shell process removes it even if the function kills this process."""
    directory = OwnedDirectory("replay")
    command = ["sh", "-c", 'read _; exec rm -rf -- "$0"', str(directory.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as sweeper:
        try:
            yield directory.path
        finally:
            sweeper.communicate()
            directory.remove()


def _scratch(record: RunReader, directory: Path) -> Path:
    """Create a temporary run directory with the name and the description of the run."""
    scratch = directory / record.name
    (scratch / layout.CHECKPOINTS).mkdir(parents=True)
    shutil.copyfile(record.path / layout.DESCRIPTION, scratch / layout.DESCRIPTION)
    return scratch


def _start(replay: Replay, scratch: Path, key: Key, *, trust: bool) -> Start:
    scene, summary = replay.scene, replay.summary
    here = _on_this_machine(place(scene, replay.rank), hardware.gpus())
    info = run_info(scene, replay.record.description, summary.attempt, str(scratch))
    return Start(
        rank=replay.rank,
        place=here,
        run=replace(info, key=key.secret, trust=trust),
        setup=_setup(scene, here),
        task=b"",
        checkpoint=cloudpickle.dumps(replay.checkpoint) if replay.checkpoint is not None else None,
        first_seq=replay.first_seq,
        cursors=replay.cursors,
    )


def _on_this_machine(then: RankAssignment, gpus: Sequence[str]) -> RankAssignment:
    """Assign the same GPUs if this machine has them, otherwise as many others as it has."""
    if set(then.visible_gpus) <= set(gpus):
        return then
    return replace(then, gpus=tuple(range(min(len(then.gpus), len(gpus)))), visible_gpus=tuple(gpus))


def _setup(scene: ReplayScene, here: RankAssignment) -> ProcessSetup:
    now = process_setup(ranks.environment(here))
    path = [*scene.sys_path, *(entry for entry in now.sys_path if entry not in scene.sys_path)]
    cwd = scene.cwd if os.path.isdir(scene.cwd) else now.cwd
    return replace(now, cwd=cwd, sys_path=tuple(path), argv=tuple(scene.argv))


def _become(start: Start, preload: Sequence[str]) -> None:
    """Set up this process in the same order as a worker, so that its random states are the same."""
    faulthandler.enable()
    apply_setup(start.setup)
    for name in preload:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(f"the run imported {name}, which cannot be imported here: {error}") from None
    seed_random(start.run, start.place)


def _unpacked(replay: Replay, examine: Examine, obstacles: list[HeadwayError]) -> Task:
    try:
        task = unpack_task(replay.task, lambda packed: _RenamedModules(io.BytesIO(packed)).load())
    except Exception as error:  # the user's modules may have been removed or changed
        obstacles.append(StorageError(f"the function in {replay.failure.folder} cannot be loaded: {error!r}"))
        raise
    many = replay.summary.num_workers > 1
    call = functools.partial(_watched, task.call, examine, obstacles)
    return replace(
        task,
        call=call,
        backend=task.backend.for_single_process() if many and task.backend is not None else task.backend,
    )


def _watched(call: Callable[[], Any], examine: Examine, obstacles: list[HeadwayError]) -> Any:
    """Call ``examine`` while the process group and the session still exist, so that users can debug in it."""
    try:
        return call()
    except AloneError as error:
        obstacles.append(error)
        raise
    except (Exception, KeyboardInterrupt) as error:  # any exception of the user's code is the result
        examine(error)
        raise


class _RenamedModules(pickle.Unpickler):
    """An unpickler for older versions' functions. It finds public names by name if their modules were renamed."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            for package in ("headway.train", "headway.train.torch", "headway.data", "headway.frameworks.torch_config"):
                if module.startswith("headway.") and hasattr(found := importlib.import_module(package), name):
                    return getattr(found, name)
            raise


class _Enough(AgreedStop):
    """Raised when the replay has passed the point where the attempt failed."""


class _Alone:
    """A connection without a controller, which answers immediately if it can answer at all."""

    alone = True

    def __init__(self, replay: Replay, start: Start, tell: Tell) -> None:
        self._rank = replay.rank
        self._last_seq = replay.last_seq
        self._known = _known(replay)
        self._staging = layout.staging(Path(start.run.path))
        self._tell = tell
        self.stopped_at: int | None = None

    def listen(self, receive: Callable[[ToWorker], None]) -> None:
        self._receive = receive

    def send(self, message: ToController, *, wake: bool = True) -> None:
        match message:
            case BarrierArrival(kind=kind) if kind == BROADCAST and self._rank != 0:
                raise AloneError(f"replay runs only one rank, but the function waits for the data of rank 0 in {kind}")
            case BarrierArrival(index=index, data=data):
                self._receive(BarrierRelease(index=index, data=data))
            case CheckpointQuery(index=index):
                self._receive(CheckpointList(index=index, found=self._known))
            case BatchCount(dataset=dataset, epoch=epoch, count=count, ended=ended):
                self._receive(CommonBatchCount(dataset=dataset, epoch=epoch, count=count, last=ended))
            case FilesStaged():
                self._drop()
            case _:
                pass  # there is no controller

    def report(self, seq: int, time: float, metrics: bytes, staged: bool, pending: bool, cursor: bytes = b"") -> None:
        self._tell(f"report {seq}  {phrases.metrics(json.loads(metrics))}".rstrip())
        if staged:
            self._drop()
        if seq > self._last_seq:
            self.stopped_at = seq
            raise _Enough(0)

    def _drop(self) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)

    def wait(self, done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Return immediately: what was not answered at once will not be answered later."""
        return done()


def _known(replay: Replay) -> tuple[CheckpointInfo, ...]:
    """Return the checkpoints from before the rank's first report, which the rank may have requested."""
    kept = [saved for saved in replay.record.checkpoints() if saved.manifest.seq < replay.first_seq]
    committed = ReportedCheckpointStatus.COMMITTED
    return tuple(
        CheckpointInfo(str(each.path), each.metrics, each.validation.status if each.validation else committed)
        for each in kept
    )
