"""Messages that the controller sends to workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headway.core.messages.worker_setup import ProcessSetup, RankAssignment, RunInfo
from headway.core.schema.data_cursor import DatasetCursor


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Tells a worker its rank, its function and where to resume.

    ``rank`` is the rank in this run; ``place.rank`` is the rank in the process group, usually the same. ``task`` is a
    cloudpickle of :class:`headway.core.task.Task`.
    """

    rank: int
    place: RankAssignment
    run: RunInfo
    setup: ProcessSetup
    task: bytes
    checkpoint: bytes | None = None  # a pickled Checkpoint
    first_seq: int = 0
    cursors: dict[str, DatasetCursor] = field(default_factory=dict)  # the position at which each dataset resumes
    stays: bool = False  # whether the process waits for another Start after this run


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointCommitted:
    """The checkpoint of report ``seq`` is durable."""

    seq: int
    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesDiscarded:
    """The files of report ``seq`` do not become part of a checkpoint, so the rank must not wait for a commit."""

    seq: int


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadGrant:
    """Answers UploadRequest: upload these files into this directory; ``refusal``: upload nothing, for this reason."""

    index: int
    folder: str
    files: tuple[str, ...]
    refusal: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestNextReport:
    """Asks for the number of the rank's next report, so that all ranks can save at the same report."""

    index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveAtReport:
    """Save the state at report ``seq``; ``leave``: stop after it. If ``seq`` is None, continue without saving."""

    seq: int | None
    leave: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestStacks:
    """Asks for the stacks of all threads."""

    index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PreemptionWarning:
    """Some ranks will be preempted: the deadline (in ms since 1970), and the ranks of each machine."""

    deadline_ms: int
    ranks: dict[str, list[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class BarrierRelease:
    """Answers BarrierArrival: all ranks have reached barrier ``index``; ``data`` comes from rank 0."""

    index: int
    data: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonBatchCount:
    """Answers BatchCount: every rank has ``count`` batches of this epoch; ``last``: one of them has no more."""

    dataset: str
    epoch: int
    count: int
    last: bool


class CheckpointInfo(NamedTuple):
    """A kept checkpoint, its metrics and the name of its status."""

    path: str
    metrics: dict[str, Any]
    status: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointList:
    """Answers CheckpointQuery ``index``: the kept checkpoints, oldest first."""

    index: int
    found: tuple[CheckpointInfo, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExitAllowed:
    """Every function has returned. No worker exits earlier, because another rank might still be connecting to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunValidation:
    """Tells a validating process to call a function with this checkpoint; the answer is ValidationReturned.

    ``task`` is a cloudpickle of :class:`headway.core.task.Task`.
    """

    setup: ProcessSetup
    logs: tuple[str, str]  # the files for its output and its errors
    task: bytes
    checkpoint: bytes  # pickled
    kwargs: dict[str, Any]  # packed: see headway.storage.checkpoint.validation_record
    key: bytes  # the run's key
    trust: bool = False


ToWorker = (
    Start
    | RequestNextReport
    | SaveAtReport
    | RequestStacks
    | PreemptionWarning
    | CheckpointCommitted
    | FilesDiscarded
    | UploadGrant
    | BarrierRelease
    | CommonBatchCount
    | CheckpointList
    | ExitAllowed
)
ToValidator = RunValidation
