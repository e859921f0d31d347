"""Messages that the controller sends to workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headway.core.messages.worker_setup import ProcessSetup, RankAssignment, RunInfo
from headway.core.schema.data_cursor import DatasetCursor


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Tells a worker its rank, its function and where to resume.

    ``rank`` counts in this run; ``place.rank`` is the rank in the process group, mostly the same. ``task`` is a
    cloudpickle of :class:`headway.core.task.Task`.
    """

    rank: int
    place: RankAssignment
    run: RunInfo
    setup: ProcessSetup
    task: bytes
    checkpoint: bytes | None = None  # a pickled Checkpoint
    first_seq: int = 0
    cursors: dict[str, DatasetCursor] = field(default_factory=dict)  # where each dataset resumes
    stays: bool = False  # whether the process waits for another Start afterwards


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointCommitted:
    """The checkpoint of report ``seq`` is durable."""

    seq: int
    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesDiscarded:
    """The files of report ``seq`` came after its checkpoint was dropped: there is nothing to wait for."""

    seq: int


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadGrant:
    """Answers UploadRequest: upload these files into this directory, or do not, and why."""

    index: int
    folder: str
    files: tuple[str, ...]
    refusal: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestNextReport:
    """Asks for the number of the rank's next report: all ranks are about to save in the same one."""

    index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveAtReport:
    """Save the state in report ``seq``; ``leave``: and stop after it. None: continue, there is nothing to save."""

    seq: int | None
    leave: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestStacks:
    """Asks for the stacks of all threads."""

    index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PreemptionWarning:
    """Some ranks will be preempted: until when (in ms since 1970), and which ranks on which machine."""

    deadline_ms: int
    ranks: dict[str, list[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class BarrierRelease:
    """Answers BarrierArrival: all ranks have reached barrier ``index``; ``data`` is rank 0's."""

    index: int
    data: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonBatchCount:
    """Answers BatchCount: every rank has ``count`` batches of this epoch; ``last``: and one of them has no more."""

    dataset: str
    epoch: int
    count: int
    last: bool


class CheckpointInfo(NamedTuple):
    """A kept checkpoint, its metrics and its status by name."""

    path: str
    metrics: dict[str, Any]
    status: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointList:
    """Answers CheckpointQuery ``index``: the kept checkpoints, the oldest first."""

    index: int
    found: tuple[CheckpointInfo, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExitAllowed:
    """Every function has returned. No worker exits before: another rank might still be connecting to it."""


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
    key: bytes  # of the run
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
