"""Messages that workers send to the controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from headway.core.messages.worker_setup import RankAssignment

LOST_EXIT_CODE = 70  # exit code of a worker that lost its controller connection or a vital thread


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """The worker's process is running. ``place`` is set if an outer launcher has already assigned the ranks.

    Workers on every host can reach this host at ``address``, and ``port`` is free there. Rank 0's address and port
    become MASTER_ADDR and MASTER_PORT.
    """

    host: str
    pid: int
    address: str = "127.0.0.1"
    port: int = 0
    gpus: tuple[str, ...] = ()
    place: RankAssignment | None = None
    stacks: str = ""  # the file to which STACKS_SIGNAL writes the worker's stacks, for workers that do not respond


RowsTaken = tuple[tuple[str, int], ...]
"""The number of rows that all ranks together have taken from each dataset, over all epochs, by dataset name."""


class Report(NamedTuple):
    """One ``report()`` call. The reports of all ranks that have the same ``seq`` form a round.

    ``staged``: its files are in staging. ``pending``: its files are still being staged, and FilesStaged will follow.

    A NamedTuple rather than a dataclass, because there may be thousands per second and tuples are much cheaper to
    create.
    """

    seq: int
    time: float
    metrics: bytes
    staged: bool = False
    pending: bool = False
    cursor: bytes = b""  # the rank's positions in its datasets, as JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveStarted:
    """This rank is starting to stage files; its report follows when all are staged. ``taken``: see Heartbeat.

    ``place``: a description of the point in training at which state is autosaved. It must be the same on all ranks;
    otherwise their files do not match.
    """

    taken: RowsTaken = ()
    place: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadRequest:
    """Asks where in the object store these files go, and which of them this rank uploads.

    No file is written twice: the first rank that asks for a file uploads it.
    """

    index: int  # number of the request
    seq: int
    name: str | None  # the name of the checkpoint, if the user chose one
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesStaged:
    """The pending files of this rank's report ``seq`` are now in staging."""

    seq: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AutosaveEnabled:
    """This rank can save its state at any report, on request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NextReport:
    """Answers RequestNextReport: the rank's next report is ``seq``; after it, the rank waits for SaveAtReport."""

    index: int
    seq: int


WaitOperation = Literal["barrier", "report", "batch", "checkpoints", "validations", "commit", "save", "upload", "exit"]
FOR_RANKS: frozenset[WaitOperation] = frozenset({"barrier", "report", "batch", "checkpoints"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """An operation that a rank's main thread is waiting for inside a Headway call.

    Attributes:
        operation: The operation that blocks it.
        since: The time at which the wait started, in seconds since 1970.
    """

    operation: WaitOperation
    since: float

    @property
    def is_for_ranks(self) -> bool:
        """True if it waits for other ranks; False if it waits for the controller or for storage."""
        return self.operation in FOR_RANKS


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    """The progress of a rank: counters that only increase, and its current activity.

    Attributes:
        batches: Number of batches that its loaders returned.
        taken: Rows that all ranks together took from each dataset that is split among them.
        collectives: Number of collective operations in all its process groups.
        common: Number of collective operations in the process group of all ranks.
        meetings: Number of barriers and broadcasts through the controller.
        phase: The phase that it is in, if any; a rank in a phase is not expected to make progress.
        in_loader: Whether it is waiting for a batch.
        wait: What it is waiting for inside a Headway call, if anything.
        rss_bytes: The resident memory of its process.
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
    """One call on a stack. ``hint``: what kind of thing the call is blocked on, if that can be determined."""

    file: str
    line: int
    function: str
    users: bool = True  # whether it is the user's own code, not a library's
    hint: Hint = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StackDump:
    """Answers RequestStacks: the main thread's calls, outermost first, and all threads with their locals as text.

    ``phase``: a long operation in another thread that the main thread is waiting for.
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
    """This rank has at least ``count`` batches of an epoch of a dataset; ``ended``: it has exactly ``count``."""

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
    """Asks for the kept checkpoints. Answered once the checkpoint of this rank's report ``after`` is committed.

    ``validated``: answered only after all validations have ended as well. A query with the same ``index`` replaces the
    earlier one: after a timeout, a rank asks for the checkpoints that are available.
    """

    index: int
    after: int | None = None
    validated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionReturned:
    """The function returned; ``value`` is its pickled return value. ``early``: it stopped at the agreed report."""

    value: bytes
    early: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerIdle:
    """A persistent worker has finished a run and is waiting for the next Start. Only the engine reads this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionFailed:
    """The function raised. ``error`` is the pickled exception, or None if it cannot be pickled.

    ``misuse``: it used Headway incorrectly, which another attempt would only repeat. ``broken``: a vital part of the
    worker failed, not the function.
    """

    kind: str
    message: str
    traceback: str
    error: bytes | None = None
    misuse: bool = False
    broken: bool = False
    stacks: str = ""  # all threads with their locals, at the time of the exception


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerExited:
    """Sent by the engine when a worker's process has ended. It is the last message from that worker.

    ``code`` is the exit code (negative: killed by that signal); without one, ``reason`` says what happened.
    ``out_of_memory``: whether the kernel's out-of-memory killer killed a process during the attempt; None if unknown.
    """

    code: int | None = None
    reason: str = ""
    out_of_memory: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationReturned:
    """The validation function returned these metrics, as JSON text."""

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
