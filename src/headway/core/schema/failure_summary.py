"""Summaries of failures and stalls: the content of ``failure.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from headway.core.schema.record import FORMAT, Count, Number, Record
from headway.core.schema.shape import ShapeError


@dataclass(frozen=True, kw_only=True)
class ReplayScene(Record):
    """The environment of an attempt, as far as a replay of one rank needs it.

    Args:
        cwd: Working directory.
        argv: Arguments of the program, without secrets.
        sys_path: Import path.
        env_vars: Names of the variables that the user set for workers.
        preload: Modules that are already imported when a worker starts.
        every_reports: Interval in reports between saves of tracked state.
        global_workers: Number of workers whose rows form one step, whatever the number of workers is.
        validates: Whether the trainer had a validation function.
        resources: Resources of each worker.
        places: Rank assignment of each worker.
        unknown: Fields that only newer versions know.
    """

    cwd: str
    argv: tuple[str, ...]
    sys_path: tuple[str, ...]
    env_vars: tuple[str, ...]
    preload: tuple[str, ...]
    every_reports: int | None
    global_workers: int | None
    validates: bool
    resources: dict[str, float]
    places: tuple[dict[str, object], ...]


@dataclass(frozen=True, kw_only=True)
class RankFailure(Record):
    """Failure of one rank; ``rank`` is None if no single rank is to blame."""

    rank: Count | None
    kind: str
    cause: str
    traceback: str


@dataclass(frozen=True, kw_only=True)
class FailureSummary(Record):
    """One failure, or one stall, of an attempt. The keys of its dicts are ranks.

    Args:
        time: Time of the failure, in seconds since 1970.
        attempt: Number of the attempt.
        num_workers: Number of its workers; 0 if the workers were never started.
        first_seq: Number of its first report.
        checkpoint: Checkpoint that it started from.
        scene: Its environment.
        kind: How the first rank failed.
        fault: Class of the failure.
        rank: Rank that failed first, if there is one.
        ranks: Ranks that hold up the run, if this is a stall.
        cause: What happened, in one sentence.
        failures: All failures, starting with the first one; None if this is a stall.
        reports: Number of each rank's newest report.
        batches: Number of batches that each rank took.
        phases: Phase of each rank that is in one.
        memory: Resident memory of each rank over time: pairs of time and bytes.
        versions: Versions of packages that a failure may depend on.
        signature: Signature of the other fields and the packed function, by the run's key.
        format: Version of this layout.
        unknown: Fields that only newer versions know.
    """

    format: int = FORMAT
    time: float
    attempt: Number
    num_workers: Count
    first_seq: Number | None
    checkpoint: str | None
    scene: ReplayScene | None = None
    kind: str
    fault: str
    rank: Count | None
    ranks: tuple[Count, ...] | None = None
    cause: str
    failures: tuple[RankFailure, ...] | None = None
    reports: dict[str, Number]
    batches: dict[str, Number]
    phases: dict[str, str]
    memory: dict[str, tuple[tuple[float, float], ...]]
    versions: dict[str, str]
    signature: str | None = None

    @classmethod
    def from_json(cls, content: Any, name: str = "") -> Self:
        found = super().from_json(content, name)
        if found.scene is not None and len(found.scene.places) != found.num_workers:
            raise ShapeError(f"scene.places must be one for each of {found.num_workers} workers")
        return found

    @property
    def is_stall(self) -> bool:
        return self.failures is None
