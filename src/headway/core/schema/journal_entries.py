"""Entries of the journal, ``events.jsonl``: every transition of a run, with its cause.

    {"time": 1795120059.923625, "event": "launched", "attempt": 1, "num_workers": 2, "first_seq": 0}

The ``format`` in ``run.json`` is the version of all files of a run. An event that this version does not know is read as
a :class:`NoticeEntry`, so that its text can be shown.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.core.schema.record import Count, Number, Record
from headway.core.schema.shape import conform

ENDED = ("FINISHED", "STOPPED", "PREEMPTED", "FAILED", "ABORTED")  # states of runs that have ended


def _now() -> float:
    return round(time.time(), 6)


@dataclass(frozen=True, kw_only=True)
class JournalEntry(Record):
    """The fields of all entries.

    Args:
        time: Time of the event, in seconds since 1970.
        event: Kind of event.
        attempt: Number of the attempt in which it happened.
        unknown: Fields that only newer versions know.
    """

    time: float = field(default_factory=_now)
    event: str
    attempt: Number | None = None


@dataclass(frozen=True, kw_only=True)
class TextEntry(JournalEntry):
    """An entry that is also shown on the console."""

    text: str


@dataclass(frozen=True, kw_only=True)
class NoticeEntry(TextEntry):
    """An event that has only a text, or that only a newer version knows."""

    text: str = ""


@dataclass(frozen=True, kw_only=True)
class StateEntry(JournalEntry):
    """The state of the run changed."""

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
    """An attempt has a different number of workers than the previous one."""

    event: str = "resized"
    num_workers: Count


@dataclass(frozen=True, kw_only=True)
class RetryEntry(TextEntry):
    """An attempt ended, and another one follows.

    Args:
        text: The sentence on the console.
        cause: Why the attempt ended.
        why: The budget that this restart counts against.
        after_s: Pause before the next attempt.
        checkpoint: Name of the checkpoint that the next attempt starts from.
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
    """The run has ended."""

    event: str = "end"
    attempt: Number = field()  # required, unlike in other entries
    state: str
    cause: str | None = ""


@dataclass(frozen=True, kw_only=True)
class PreemptionEntry(TextEntry):
    """Workers, or the driver, received SIGTERM. ``within_s``: the time that they have to save a checkpoint."""

    event: str = "preemption"
    ranks: tuple[Count, ...]
    within_s: float


@dataclass(frozen=True, kw_only=True)
class StallEntry(TextEntry):
    """Ranks stopped making progress (with ``fault``), or make progress again (without).

    Args:
        text: The sentence on the console.
        fault: What kind of stall it is.
        ranks: Ranks that hold up the run; None for all.
        silent_s: Time without progress, in seconds.
    """

    event: str = "stall"
    fault: str | None = None
    ranks: tuple[Count, ...] | None = None
    silent_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseEntry(TextEntry):
    """Ranks have been in a phase for a long time; no progress is expected during a phase."""

    event: str = "phase"
    ranks: tuple[Count, ...]


@dataclass(frozen=True, kw_only=True)
class AwaitingFilesEntry(TextEntry):
    """A rank failed, and other ranks may still complete the checkpoint."""

    event: str = "awaiting"
    ranks: tuple[Count, ...]


@dataclass(frozen=True, kw_only=True)
class KilledEntry(TextEntry):
    """Ranks that did not exit in time were killed."""

    event: str = "killed"
    ranks: tuple[Count, ...]


@dataclass(frozen=True, kw_only=True)
class CheckpointEntry(JournalEntry):
    """A checkpoint was committed. ``seconds`` and ``bytes``: duration and size of its upload, if there was one."""

    event: str = "checkpoint"
    attempt: Number = field()  # required, unlike in other entries
    path: str
    seq: Number
    seconds: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class RetiredEntry(JournalEntry):
    """A checkpoint is removed because it is not among those to keep."""

    event: str = "retired"
    path: str
    seq: Number
    why: str


@dataclass(frozen=True, kw_only=True)
class RemovedEntry(JournalEntry):
    """A user removed a checkpoint."""

    event: str = "removed"
    path: str
    seq: Number
    why: str


@dataclass(frozen=True, kw_only=True)
class WithdrawnEntry(TextEntry):
    """A checkpoint is removed because it cannot be completed."""

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
    """Files arrived for a checkpoint that is no longer kept."""

    event: str = "late"
    seq: Number


@dataclass(frozen=True, kw_only=True)
class RecoveringFilesEntry(TextEntry):
    """A rank exited before its files were staged, and the driver brings them to storage."""

    event: str = "finishing"
    rank: Count
    seq: Number


@dataclass(frozen=True, kw_only=True)
class FileConflictEntry(TextEntry):
    """Ranks gave files with the same name but different contents."""

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
    """A checkpoint of an earlier opening awaits its validation."""

    event: str = "validation"
    path: str


@dataclass(frozen=True, kw_only=True)
class ValidatedEntry(TextEntry):
    """A validation ended; ``error`` says why it failed."""

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
    """Return the entry for the content of a journal line. Raises ShapeError if it is not an entry."""
    conform(content, {"event": str, "time": frozenset({int, float})})
    return _KINDS.get(content["event"], NoticeEntry).from_json(content)


def state_of(entry: JournalEntry) -> str | None:
    """The state of the run after this entry, or None if the entry has no state."""
    return entry.state if isinstance(entry, StateEntry | EndEntry) else None
