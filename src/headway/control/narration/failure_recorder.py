"""The failure recorder records the state of each attempt, and writes a failure bundle if it fails or stalls."""

from __future__ import annotations

import functools
import platform
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import headway
from headway.control.job_thread import JobThread
from headway.control.machine.retry_policy import Failure
from headway.control.narration.failure_text import fault, ordered, sentence
from headway.core.messages import FunctionFailed, Heartbeat, Report, StackDump, Start, ToController
from headway.core.schema.failure_summary import FailureSummary, RankFailure, ReplayScene
from headway.core.security.signing import Key
from headway.diagnosis.verdict import Diagnosis
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.run import failure_bundle as bundles
from headway.storage.run.failure_bundle import FailureBundle

MEMORY_SAMPLES = 300
PACKAGES = ("torch", "numpy", "pyarrow", "cloudpickle")


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """The current attempt; it has no workers if they could not be started."""

    attempt: int = 0
    num_workers: int = 0
    first_seq: int | None = None
    checkpoint: str | None = None
    scene: ReplayScene | None = None


class FailureRecorder:
    """The failure recorder. The controller's thread uses it; bundles are written in a separate thread.

    Args:
        run: The run directory.
        task: The packed training function, for replays.
        key: Signs the packed function.
        warn: Logs a warning.
    """

    def __init__(self, run: Path, task: bytes, key: Key, warn: Callable[[str], None]) -> None:
        self._run = run
        self._key = key
        self._task = task
        self._warn = warn
        self._thread = JobThread("headway-postmortem")
        self._num_stalls = 0
        self._attempt = _Attempt()
        self._stacks: dict[int, str] = {}
        self._raised: set[int] = set()
        self._heartbeats: dict[int, Heartbeat] = {}
        self._reports: dict[int, int] = {}
        self._memory: dict[int, deque[tuple[float, int]]] = {}

    def on_attempt_start(self, start: Start, checkpoint: Checkpoint | None, scene: ReplayScene) -> None:
        """Reset the record for an attempt that starts from this checkpoint."""
        self._attempt = _Attempt(
            attempt=start.run.attempt,
            num_workers=start.run.num_workers,
            first_seq=start.first_seq,
            checkpoint=checkpoint.get_internal_representation()[1] if checkpoint is not None else None,
            scene=scene,
        )
        self._num_stalls = 0
        for known in (self._stacks, self._raised, self._heartbeats, self._reports, self._memory):
            known.clear()

    def on_message(self, rank: int, message: ToController) -> None:
        match message:
            case Report(seq=seq):
                self._reports[rank] = seq
            case Heartbeat():
                self._keep(rank, message)
            case StackDump(text=text, heartbeat=heartbeat):
                if rank not in self._raised:  # keep the stacks of the exception
                    self._stacks[rank] = text
                self._keep(rank, heartbeat)
            case FunctionFailed(stacks=stacks):
                self._stacks[rank] = stacks
                self._raised.add(rank)

    def _keep(self, rank: int, heartbeat: Heartbeat) -> None:
        self._heartbeats[rank] = heartbeat
        history = self._memory.setdefault(rank, deque(maxlen=MEMORY_SAMPLES))
        history.append((round(time.time(), 1), heartbeat.rss_bytes))

    def record_stall(self, diagnosis: Diagnosis, stacks: Mapping[int, str]) -> Path:
        """Write a bundle and return its directory. ``stacks`` includes ranks that did not answer."""
        self._num_stalls += 1
        self._stacks.update(stacks)
        name = f"attempt-{self._attempt.attempt:03d}-stall-{self._num_stalls}"
        summary = self._summary("stalled", diagnosis.fault, diagnosis.ranks[0], diagnosis.text)
        self._write(name, replace(summary, ranks=tuple(diagnosis.ranks)))
        return bundles.directory_of(self._run, name)

    def record_failure(self, attempt: int, failures: Sequence[Failure]) -> None:
        first, *_ = ordered(failures)
        if attempt != self._attempt.attempt:  # the workers of the failed attempt could not be started
            self._attempt = _Attempt(attempt=attempt)
        summary = self._summary(first.kind, fault(first), first.rank, sentence(failures))
        failed = tuple(_failure(failure) for failure in ordered(failures))
        self._write(f"attempt-{attempt:03d}", replace(summary, failures=failed), self._task)

    def _summary(self, kind: str, fault: str, rank: int | None, cause: str) -> FailureSummary:
        return FailureSummary(
            time=time.time(),
            attempt=self._attempt.attempt,
            num_workers=self._attempt.num_workers,
            first_seq=self._attempt.first_seq,
            checkpoint=self._attempt.checkpoint,
            scene=self._attempt.scene,
            kind=kind,
            fault=fault,
            rank=rank,
            cause=cause,
            reports={str(rank): seq for rank, seq in sorted(self._reports.items())},
            batches={str(rank): beat.batches for rank, beat in sorted(self._heartbeats.items())},
            phases={str(rank): beat.phase for rank, beat in sorted(self._heartbeats.items()) if beat.phase},
            memory={str(rank): tuple(history) for rank, history in sorted(self._memory.items())},
            versions=versions(),
        )

    def _write(self, name: str, summary: FailureSummary, task: bytes = b"") -> None:
        bundle = FailureBundle(name, summary, dict(self._stacks), task, self._key)
        self._thread.do(name, lambda: self._written(bundle))

    def _written(self, bundle: FailureBundle) -> None:
        try:
            bundles.write(self._run, bundle)
        except OSError as error:
            self._warn(f"failure bundle {bundle.name} could not be written: {error}")

    def close(self) -> None:
        self._thread.close()


def _failure(failure: Failure) -> RankFailure:
    traceback = failure.cause.traceback if isinstance(failure.cause, FunctionFailed) else ""
    return RankFailure(rank=failure.rank, kind=failure.kind, cause=sentence([failure]), traceback=traceback)


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of packages that a failure may depend on."""
    found = {"python": platform.python_version(), "headway": headway.__version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
