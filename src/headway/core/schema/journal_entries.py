"""Entries of the journal, ``events.jsonl``: every transition of a run, with its cause.

    {"time": 1795120059.923625, "event": "launched", "attempt": 1, "num_workers": 2, "first_seq": 0}

The ``format`` in ``run.json`` is the version of all files of a run. An event that this version does not know is read as
a :class:`NoticeEntry`: its text can be shown, whatever else it says.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.core.schema.record import Count, Number, Record
from headway.core.schema.shape import conform

ENDED = ("FINISHED", "STOPPED", "PREEMPTED", "FAILED", "ABORTED")  # states of runs that are over


def _now() -> float:
    return round(time.time(), 6)


@dataclass(frozen=True, kw_only=True)
class JournalEntry(Record):
    """What all entries have.

    Args:
        time: When it happened, in seconds since 1970.
        event: What happened.
        attempt: Number of the attempt that it happened to.
        unknown: Fields that only newer versions know.
    """

    time: float = field(default_factory=_now)
    event: str
    attempt: Number | None = None


@dataclass(frozen=True, kw_only=True)
class TextEntry(JournalEntry):
    """What entries have that are also said on the console."""

    text: str


@dataclass(frozen=True, kw_only=True)
class NoticeEntry(TextEntry):
    """An event that says no more than its text, or that only a newer version knows."""

    text: str = ""


@dataclass(frozen=True, kw_only=True)
class StateEntry(JournalEntry):
    """The run has another state."""

    event: str = "state"
    state: str


@dataclass(frozen=True, kw_only=True)
class LaunchEntry(JournalEntry):
    """Workers of a new attempt are launched. ``first_seq``: the number of its first report."""

    event: str = "launched"
    attempt: Number = field()  # required, unlike in other entries
    num_workers: Count
    first_seq: Number


@dataclass(frozen=True, kw_only=True)
class ResizeEntry(TextEntry):
    """An attempt has another number of workers than the one before."""

    event: str = "resized"
    num_workers: Count


@dataclass(frozen=True, kw_only=True)
class RetryEntry(TextEntry):
    """An attempt has ended, and another follows.

    Args:
        text: The sentence on the console.
        cause: Why it ended.
        why: Which budget it counts against.
        after_s: Pause before the next attempt.
        checkpoint: Name of the checkpoint that the next attempt begins with.
    """

    event: str = "retry"
    text: str = ""
    attempt: Number = field()  # required, unlike in other entries
    cause: str
    why: str = ""
    after_s: float
    checkpoint: str | None


@dataclass(frozen=True, kw_only=True)
class EndEntry(JournalEntry):
    """The run is over."""

    event: str = "end"
    attempt: Number = field()  # required, unlike in other entries
    state: str
    cause: str | None = ""


@dataclass(frozen=True, kw_only=True)
class PreemptionEntry(TextEntry):
    """Workers, or the driver, have received SIGTERM. ``within_s``: how long they may take for a checkpoint."""

    event: str = "preemption"
    ranks: tuple[Count, ...]
    within_s: float


@dataclass(frozen=True, kw_only=True)
class StallEntry(TextEntry):
    """Ranks have stopped making progress (with ``fault``), or make progress again (without).

    Args:
        text: The sentence on the console.
        fault: What kind of stall it is.
        ranks: Ranks that hold up the run; None for all.
        silent_s: How long nothing happened before.
    """

    event: str = "stall"
    fault: str | None = None
    ranks: tuple[Count, ...] | None = None
    silent_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseEntry(TextEntry):
    """Ranks stay in a phase in which silence is expected."""

    event: str = "phase"
    ranks: tuple[Count, ...]


@dataclass(frozen=True, kw_only=True)
class AwaitingFilesEntry(TextEntry):
    """A rank has failed, and others may still complete its checkpoint."""

    event: str = "awaiting"
    ranks: tuple[Count, ...]


@dataclass(frozen=True, kw_only=True)
class KilledEntry(TextEntry):
    """Ranks that did not exit in time were killed."""

    event: str = "killed"
    ranks: tuple[Count, ...]


@dataclass(frozen=True, kw_only=True)
class CheckpointEntry(JournalEntry):
    """A checkpoint is committed. ``seconds`` and ``bytes``: of its upload, where there was one."""

    event: str = "checkpoint"
    attempt: Number = field()  # required, unlike in other entries
    path: str
    seq: Number
    seconds: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class RetiredEntry(JournalEntry):
    """A checkpoint is removed because others are kept."""

    event: str = "retired"
    path: str
    seq: Number
    why: str


@dataclass(frozen=True, kw_only=True)
class RemovedEntry(JournalEntry):
    """A checkpoint was removed by a user."""

    event: str = "removed"
    path: str
    seq: Number
    why: str


@dataclass(frozen=True, kw_only=True)
class WithdrawnEntry(TextEntry):
    """A checkpoint is removed because it cannot be whole."""

    event: str = "withdrawn"
    seq: Number


@dataclass(frozen=True, kw_only=True)
class PartialCheckpointEntry(TextEntry):
    """A checkpoint is dropped before its commit. ``missing``: ranks whose files or batches it lacks."""

    event: str = "partial"
    seq: Number
    missing: tuple[Count, ...]


@dataclass(frozen=True, kw_only=True)
class LateFilesEntry(TextEntry):
    """Files came for a checkpoint that is no longer kept."""

    event: str = "late"
    seq: Number


@dataclass(frozen=True, kw_only=True)
class RecoveringFilesEntry(TextEntry):
    """A rank has exited during an upload, which the driver completes."""

    event: str = "finishing"
    rank: Count
    seq: Number


@dataclass(frozen=True, kw_only=True)
class FileConflictEntry(TextEntry):
    """Ranks gave different contents for one file."""

    event: str = "clash"
    file: str
    ranks: tuple[Count, ...]


@dataclass(frozen=True, kw_only=True)
class ValidationStartEntry(JournalEntry):
    """A checkpoint is being validated."""

    event: str = "validating"
    path: str
    seq: Number


@dataclass(frozen=True, kw_only=True)
class ValidationPendingEntry(TextEntry):
    """A checkpoint of a former opening awaits its validation."""

    event: str = "validation"
    path: str


@dataclass(frozen=True, kw_only=True)
class ValidatedEntry(TextEntry):
    """A validation has ended; ``error`` says why it failed."""

    event: str = "validated"
    path: str
    status: str
    metrics: dict[str, object]
    error: str | None = None


_KINDS: Mapping[str, type[JournalEntry]] = {
    vars(kind)["event"]: kind
    for kind in (*JournalEntry.__subclasses__(), *TextEntry.__subclasses__())
    if kind not in (TextEntry, NoticeEntry)
}


def entry_from_json(content: Any) -> JournalEntry:
    """The entry that a line of the journal holds. ShapeError where it is none."""
    conform(content, {"event": str, "time": frozenset({int, float})})
    return _KINDS.get(content["event"], NoticeEntry).from_json(content)


def state_of(entry: JournalEntry) -> str | None:
    """The state of the run after this entry, if it says one."""
    return entry.state if isinstance(entry, StateEntry | EndEntry) else None
