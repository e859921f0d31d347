"""Messages that workers send to the controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from headway.core.messages.worker_setup import RankAssignment

LOST_EXIT_CODE = 70  # of a worker that lost its connection to the controller, or one of its vital threads


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """The worker's process runs. ``place`` is set where an outer launcher has assigned the ranks already.

    ``address`` is one at which the workers of all hosts reach this host, and ``port`` is free there: those of rank 0
    become MASTER_ADDR and MASTER_PORT.
    """

    host: str
    pid: int
    address: str = "127.0.0.1"
    port: int = 0
    gpus: tuple[str, ...] = ()
    place: RankAssignment | None = None
    stacks: str = ""  # the file that its stacks are written to on STACKS_SIGNAL, when it does not answer


RowsTaken = tuple[tuple[str, int], ...]
"""The number of rows that all ranks together have taken from each dataset, over all epochs, by dataset name."""


class Report(NamedTuple):
    """One call of ``report()``. Reports of all ranks with equal ``seq`` form a round.

    ``staged``: its files are in staging. ``pending``: they will be, and FilesStaged will say so.

    A tuple, because there may be thousands per second and a tuple is created in a fraction of the time.
    """

    seq: int
    time: float
    metrics: bytes
    staged: bool = False
    pending: bool = False
    cursor: bytes = b""  # the rank's positions in its datasets, as JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveStarted:
    """This rank begins to stage files; its report follows when all of them are staged. ``taken``: see Heartbeat.

    ``place``: the position of autosaved state, in words. It must be equal on all ranks, or the files do not match.
    """

    taken: RowsTaken = ()
    place: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadRequest:
    """Asks where in the object store these files go, and which of them this rank uploads.

    No file is written twice: the first rank that asks for a file uploads it.
    """

    index: int  # of the request
    seq: int
    name: str | None  # the name of the checkpoint, if the user has chosen one
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesStaged:
    """The pending files of this rank's report ``seq`` are in staging now."""

    seq: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AutosaveEnabled:
    """This rank can save its state in any report, on request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NextReport:
    """Answers RequestNextReport: my next report is ``seq``, and before the one after it I wait for SaveAtReport."""

    index: int
    seq: int


WaitOperation = Literal["barrier", "report", "batch", "checkpoints", "validations", "commit", "save", "upload", "exit"]
FOR_RANKS: frozenset[WaitOperation] = frozenset({"barrier", "report", "batch", "checkpoints"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """What the main thread of a rank waits for in a call of Headway.

    Attributes:
        operation: What it waits in.
        since: When the wait began, in seconds since 1970.
    """

    operation: WaitOperation
    since: float

    @property
    def is_for_ranks(self) -> bool:
        """Whether it waits for other ranks; else for the controller or for storage."""
        return self.operation in FOR_RANKS


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    """The progress of a rank: numbers that grow.

    Attributes:
        batches: Batches that its loaders have returned.
        taken: Rows that all ranks together have taken from each dataset that is split among them.
        collectives: Operations of all its process groups.
        common: Operations of the process group that contains all ranks.
        meetings: Barriers and broadcasts through the controller.
        phase: What it is busy with, where silence is expected.
        in_loader: Whether it waits for a batch.
        wait: What it waits for in a call of Headway, if it does.
        rss_bytes: The memory of its process.
    """

    batches: int = 0
    taken: RowsTaken = ()
    collectives: int = 0
    common: int = 0
    meetings: int = 0
    phase: str = ""
    in_loader: bool = False
    wait: Wait | None = None
    rss_bytes: int = 0


Hint = Literal["", "lock", "sleep", "io", "child"]


class Frame(NamedTuple):
    """One call on a stack. ``hint``: the kind of thing that the line waits for, if that is visible."""

    file: str
    line: int
    function: str
    users: bool = True  # whether it is the user's own code, not a library's
    hint: Hint = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StackDump:
    """Answers RequestStacks: the main thread's calls, outermost first, and all threads with their locals as text.

    ``phase``: what another thread does that the main thread waits for, and that may take long.
    """

    index: int
    heartbeat: Heartbeat
    main: tuple[Frame, ...]
    text: str
    phase: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreemptionNotice:
    """This rank's process received SIGTERM; ``deadline_s``: seconds until it will be killed."""

    deadline_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BarrierArrival:
    """This rank has reached its ``index``-th barrier or broadcast."""

    index: int
    kind: str
    data: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCount:
    """This rank has at least ``count`` batches of an epoch of a dataset; ``ended``: exactly so many."""

    dataset: str
    epoch: int
    count: int
    ended: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class DataStats:
    """Statistics of this rank's data pipelines, as JSON text."""

    text: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointQuery:
    """Asks for the kept checkpoints, as soon as that of this rank's report ``after`` is committed.

    ``validated``: and as soon as all validations have ended. A query with the same ``index`` replaces the earlier one:
    a rank whose timeout has passed asks for what is there.
    """

    index: int
    after: int | None = None
    validated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionReturned:
    """The function returned; ``value`` is its pickled return value. ``early``: it stopped in the agreed report."""

    value: bytes
    early: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerIdle:
    """A persistent worker has finished a run and waits for the next Start. Only the engine reads this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionFailed:
    """The function raised. ``error`` is the pickled exception, or None where it cannot be pickled.

    ``misuse``: it called Headway in a way that another attempt would only repeat. ``broken``: a vital part of the
    worker failed, not the function.
    """

    kind: str
    message: str
    traceback: str
    error: bytes | None = None
    misuse: bool = False
    broken: bool = False
    stacks: str = ""  # all threads with their locals, at the time it raised


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerExited:
    """The engine says that a worker's process has ended; the last message with that worker as its sender.

    ``code`` is the exit code (negative: killed by that signal); without one, ``reason`` says what happened.
    ``out_of_memory``: whether the kernel has killed a process for its memory meanwhile; None where that is unknown.
    """

    code: int | None = None
    reason: str = ""
    out_of_memory: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationReturned:
    """The validation function has returned these metrics, as JSON text."""

    metrics: bytes


SentByWorker = (
    Ready
    | AutosaveEnabled
    | NextReport
    | SaveStarted
    | UploadRequest
    | Report
    | FilesStaged
    | BarrierArrival
    | CheckpointQuery
    | BatchCount
    | DataStats
    | WorkerIdle
    | Heartbeat
    | StackDump
    | PreemptionNotice
    | FunctionReturned
    | FunctionFailed
)
SentByValidator = Ready | ValidationReturned | FunctionFailed
ToController = SentByWorker | WorkerExited
