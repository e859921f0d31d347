"""What travels between a worker and its controller, the same over every engine.

    worker                                   controller
      │── Ready ──────────────────────────────▶│   I am here, on this host, with these devices
      │◀───────────────────────────── Start ───│   your place in the world, your function, where to go on
      │── Report, Report, … ──────────────────▶│   metrics, perhaps files that already lie in staging;
      │                                        │   Saving goes before files, Staged after those that come later
      │◀───────────────── Committed | Spent ───│   that checkpoint is durable; your files for it came too late
      │── Claim ──────────────────────────────▶│   (object stores) where do these files go, and which of them?
      │◀─────────────────────────── Granted ───│   there, and these
      │── Tracking ───────────────────────────▶│   my state saves itself
      │◀────────────────────────── Approach ───│   where are you? go at most one report further
      │── At ─────────────────────────────────▶│   here
      │◀──────────────────────────── SaveAt ───│   save in this report, and perhaps leave
      │── Pulse ──────────────────────────────▶│   how far I am: now and then, unasked
      │◀────────────────────────────── Dump ───│   what are you doing?
      │── Stacks ─────────────────────────────▶│   this
      │── Preempted ──────────────────────────▶│   I am told to leave
      │◀──────────────────────── Preemption ───│   some of you are told to leave
      │── Arrive ─────────────────────────────▶│   at a barrier or broadcast
      │◀─────────────────────────── Release ───│   all are here
      │── Steps ──────────────────────────────▶│   so many batches of an epoch I have, and perhaps no more
      │◀─────────────────────────── Horizon ───│   so many have all of you
      │── DataFigures ────────────────────────▶│   how my data pipelines do: now and then
      │── AskCheckpoints ─────────────────────▶│   which checkpoints are there, as soon as …
      │◀─────────────────────── Checkpoints ───│   these
      │── Finished | Failed ──────────────────▶│
      │◀───────────────────────── Dismissed ───│   all have finished: you may leave
      │── Rested ─────────────────────────────▶│   (workers that stay) to the engine: I wait for another Start
      ╳── Exited ─────────────────────────────▶│   from the engine: exactly one per worker, and its last

User objects travel inside as opaque cloudpickle bytes; metrics travel as the JSON text that will stand in
``metrics.jsonl``, so that the controller moves them without looking inside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True, kw_only=True, slots=True)
class RankAssignment:
    """Where one worker stands among all. ``gpus`` are indices into ``visible_gpus``, which all on a node share."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int = 0
    num_nodes: int = 1
    gpus: tuple[int, ...] = ()
    visible_gpus: tuple[str, ...] = ()
    num_threads: int | None = None
    master_addr: str = "127.0.0.1"
    master_port: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """What a worker may know of the run it belongs to."""

    id: str
    name: str
    path: str
    seed: int
    every_reports: int | None = None
    root: str = ""  # where checkpoints are made, if not in ``path``
    store: bytes = b""  # the object store that the run is in, pickled
    validates: bool = False  # whether there is a function to validate checkpoints with
    attempt: int
    num_workers: int
    global_workers: int | None = None  # so many workers' rows make a step, however many there are; None: just theirs
    resources: dict[str, float] = field(default_factory=dict)
    key: bytes = b""  # of the run: what its workers write is signed with it
    trust: bool = False  # pickles of the run's directory may be opened, whoever wrote them


Stream = Literal["out", "err"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerSettings:
    """A handler of ``logging`` that writes to the console; ``style`` is its formatter with its filters, pickled."""

    stream: Stream
    level: int = 0
    style: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggerSettings:
    """What is set for one logger; the root logger has no name."""

    name: str
    level: int
    propagate: bool = True
    disabled: bool = False
    handlers: tuple[HandlerSettings, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggingSettings:
    """How ``logging`` is configured; ``disabled_level`` is that of ``logging.disable()``."""

    loggers: tuple[LoggerSettings, ...]
    disabled_level: int = 0
    level_names: dict[int, str] = field(default_factory=dict)
    captures_warnings: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessSetup:
    """What a process must look like before user code is unpickled in it."""

    env: dict[str, str]
    cwd: str
    sys_path: tuple[str, ...]
    argv: tuple[str, ...] = ()
    logging: LoggingSettings | None = None


LOST_EXIT_CODE = 70  # of a worker that has lost its connection to the controller, or a thread that it cannot do without


# --- worker → controller ---


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """Here I am. ``place`` is set where a launcher outside of us has dealt out the ranks already."""

    host: str
    pid: int
    gpus: tuple[str, ...] = ()
    place: RankAssignment | None = None
    stacks: str = ""  # the file that its stacks go to on STACKS_SIGNAL, where it cannot answer


RowsTaken = tuple[tuple[str, int], ...]
"""By dataset, how many rows of its order have been passed by all ranks when they have come as far, over all epochs."""


class Report(NamedTuple):
    """One call of ``report()``: equal ``seq`` over ranks is a round. ``staged`` says that files lie in staging.

    ``pending``: files will lie there, and Staged will say so.

    A tuple, because there may be thousands a second and a tuple is made in a fraction of the time.
    """

    seq: int
    time: float
    metrics: bytes
    staged: bool = False
    pending: bool = False
    cursor: bytes = b""  # where in its datasets the rank is, as JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveStarted:
    """This rank begins to lay files into staging; its report follows when they are all there. ``taken``: see Pulse.

    ``place``: where state that saves itself stands, in words. It is the same on all ranks, or the files do not fit.
    """

    taken: RowsTaken = ()
    place: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadRequest:
    """Saving, on storage where files lie where they will stay from the start: where shall these go, and which of them?

    No name is written twice: the first rank that claims it puts the file there.
    """

    index: int  # of the question
    seq: int
    name: str | None  # what the checkpoint shall be called, if the user cares
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesStaged:
    """The files that this rank's report ``seq`` has promised lie in staging now."""

    seq: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AutosaveEnabled:
    """This rank's state saves itself, in any report that it is told to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NextReport:
    """The answer to Approach: my next report is ``seq``, and I will not go beyond it before I hear of you."""

    index: int
    seq: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    """How far this rank is: numbers that grow as it gets on. ``phase``: it has said that silence is to be expected.

    ``collectives``: operations of its process groups; ``common``: of the one that all ranks are in. ``taken``: how far
    it has come in each dataset that is split among the ranks.
    """

    batches: int = 0
    taken: RowsTaken = ()
    collectives: int = 0
    common: int = 0
    meetings: int = 0
    phase: str = ""
    in_loader: bool = False  # it waits for a batch
    rss_bytes: int = 0


Hint = Literal["", "lock", "sleep", "io", "child"]


class Frame(NamedTuple):
    """One call on a stack. ``hint``: what kind of thing the line waits for, if that can be seen."""

    file: str
    line: int
    function: str
    users: bool = True  # of the user's own code, not of a library
    hint: Hint = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StackDump:
    """The answer to Dump: the main thread's calls, the outermost first; all threads with their locals as text.

    ``phase``: what another thread does that the main thread waits for, and that may take its time.
    """

    index: int
    pulse: Heartbeat
    main: tuple[Frame, ...]
    text: str
    phase: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreemptionNotice:
    """This rank's process was told to leave (SIGTERM); ``deadline_s``: in so many seconds it will be ended."""

    deadline_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BarrierArrival:
    """This rank stands at its ``index``-th meeting point."""

    index: int
    kind: str
    data: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCount:
    """This rank has at least ``count`` batches of an epoch of a dataset; ``ended``: and not one more."""

    dataset: str
    epoch: int
    count: int
    ended: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class DataStats:
    """What this rank's data pipelines have done so far, as JSON text."""

    text: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointQuery:
    """Which checkpoints are there, as soon as that of this rank's report ``after`` is; ``validated``: and every
    validation is over. The same ``index`` again replaces the question: a rank that has waited long enough asks for
    what there is.
    """

    index: int
    after: int | None = None
    validated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionReturned:
    """The function returned; ``value`` is its pickled return value. ``early``: it left in the report agreed on."""

    value: bytes
    early: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerIdle:
    """A worker that stays is through with a run, and waits for the Start of another one. For the engine alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionFailed:
    """The function raised. ``error`` is the pickled exception, or None where it does not pickle.

    ``misuse``: it called us in a way that another attempt would only repeat. ``broken``: it is not the function that
    has failed, but a part of the worker without which it cannot go on.
    """

    kind: str
    message: str
    traceback: str
    error: bytes | None = None
    misuse: bool = False
    broken: bool = False
    stacks: str = ""  # all threads with their locals, as they were when it raised


# --- controller → worker ---


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """``rank`` counts in this run; ``place`` is where the process stands in its group, mostly the same.

    ``task`` is a cloudpickle of :class:`headway.core.task.Task`.
    """

    rank: int
    place: RankAssignment
    run: RunInfo
    surroundings: ProcessSetup
    task: bytes
    checkpoint: bytes | None = None  # a pickled Checkpoint
    first_seq: int = 0
    cursors: dict[str, Any] = field(default_factory=dict)  # where each dataset goes on, as its checkpoint says
    stays: bool = False  # whether the process waits for another Start when it is through


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointCommitted:
    seq: int
    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesDiscarded:
    """The files of report ``seq`` came when its checkpoint was gone: nobody has to wait for it."""

    seq: int


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadGrant:
    """Put these of your files into this folder; or do not, and why."""

    index: int
    folder: str
    files: tuple[str, ...]
    refusal: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestNextReport:
    """All ranks are to do something in the same report: where are you?"""

    index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveAtReport:
    """Save your state in report ``seq``; ``leave``: and be through with it. None: go on, there is nothing to do."""

    seq: int | None
    leave: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestStacks:
    """What are all your threads doing?"""

    index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PreemptionWarning:
    """These ranks are told to leave: until when (in ms since 1970), and which ranks on which machine."""

    deadline_ms: int
    ranks: dict[str, list[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class BarrierRelease:
    """All ranks have reached meeting point ``index``; ``data`` is rank 0's."""

    index: int
    data: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonBatchCount:
    """Every rank has ``count`` batches of this epoch; ``last``: and one of them no more."""

    dataset: str
    epoch: int
    count: int
    last: bool


class CheckpointInfo(NamedTuple):
    """A checkpoint that is there, what is known of it, and its status by name."""

    path: str
    metrics: dict[str, Any]
    status: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointList:
    """The answer to question ``index``, the oldest first."""

    index: int
    found: tuple[CheckpointInfo, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExitAllowed:
    """Every function has returned. Nobody leaves before: a peer might still be shaking hands with it."""


# --- controller ↔ a validating process: it says Ready, is told what to do, and says Examined or Failed ---


@dataclass(frozen=True, kw_only=True, slots=True)
class RunValidation:
    """Call a function with this checkpoint. ``task`` is a cloudpickle of :class:`headway.core.task.Task`."""

    surroundings: ProcessSetup
    logs: tuple[str, str]  # where its output goes, and its errors
    task: bytes
    checkpoint: bytes  # pickled
    kwargs: dict[str, Any]  # packed: see headway.storage.checkpoint.validation_record
    key: bytes  # of the run
    trust: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationReturned:
    """The function has returned these metrics, as JSON text."""

    metrics: bytes


# --- engine → controller ---


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerExited:
    """The process left the run: exit code (negative: killed by that signal), or the engine's own words.

    ``out_of_memory``: whether the kernel has killed a process for its memory meanwhile; None where nobody knows.
    """

    code: int | None = None
    reason: str = ""
    out_of_memory: bool | None = None


ToController = (
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
    | WorkerExited
)
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


@dataclass(frozen=True, slots=True)
class FromWorker:
    """A message with its sender, as stamped by the engine: ``attempt`` fences what comes late."""

    attempt: int
    rank: int
    message: ToController


# --- user → controller ---


@dataclass(frozen=True, slots=True)
class AbortEvent:
    """End now, as ABORTED. Said twice: without grace."""


@dataclass(frozen=True, slots=True)
class StopEvent:
    """End soon, keep what was reached, as STOPPED."""


@dataclass(frozen=True, slots=True)
class TerminateEvent:
    """This program is told to leave (SIGTERM): save what can be saved and end as PREEMPTED. Said twice: at once."""


# --- engine → controller ---


@dataclass(frozen=True, slots=True)
class WorkersPreemptedEvent:
    """These workers (by their index) will be taken away, in so many seconds if that is known."""

    attempt: int
    indices: tuple[int, ...]
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class CapacityEvent:
    """So many workers of this run's kind could run now."""

    num_workers: int
