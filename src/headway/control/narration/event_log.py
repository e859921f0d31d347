"""The event log: each event of a run becomes a line in the journal and one sentence for the user."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from headway.control.machine.events import (
    RecordRetry,
)
from headway.control.machine.state import Leaving
from headway.control.narration.failure_text import sentence, traceback_text
from headway.core import phrases
from headway.core.checkpoints import Manifest, SavedCheckpoint
from headway.core.config import CheckpointConfig
from headway.core.messages import Report
from headway.core.schema.journal_entries import (
    LaunchEntry,
    NoticeEntry,
    PhaseEntry,
    PreemptionEntry,
    ResizeEntry,
    RetryEntry,
    StallEntry,
    TextEntry,
)
from headway.diagnosis.verdict import Diagnosis
from headway.observe.run_observer import RunObserver
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.run.run_directory import RunDirectory


class EventLog:
    """The event log.

    Args:
        rundir: The run's directory, which contains the journal.
        watcher: Receives the sentences for the user.
        config: How often tracked state is saved.
        first: Where the run starts if it has no checkpoint of its own; None: from the beginning.
    """

    def __init__(
        self, rundir: RunDirectory, watcher: RunObserver, config: CheckpointConfig, first: Checkpoint | None = None
    ) -> None:
        self._rundir = rundir
        self._first = first
        self._watcher = watcher
        self._every = {"every_reports": config.every_reports, "every_s": config.every_s}
        self._saves_regularly = any(self._every.values())
        self._warned_untracked = False
        self._num_workers: int | None = None  # in the previous attempt
        self._disk_trouble = False  # whether the user was told that the journal cannot be written

    def tell(self, event: str, text: str, level: str = "INFO") -> None:
        """Record an event that consists of its text alone, and log the text."""
        self.record(NoticeEntry(event=event, text=text), level)

    def record(self, entry: TextEntry, level: str = "INFO") -> None:
        """Record an entry, and log its text."""
        self._rundir.note(entry)
        self._watcher.say(entry.text, level=level)

    def watch_disk(self) -> None:
        """Warn once if journal and metrics cannot be written."""
        trouble = self._rundir.trouble
        if trouble is not None and not self._disk_trouble:
            text = f"journal and metrics cannot be written ({trouble.strerror}): they are kept until they can"
            self._watcher.say(text, level="WARNING")
        self._disk_trouble = trouble is not None

    # --- attempts ---

    def launched(
        self, attempt: int, num_workers: int, first_seq: int, newest: SavedCheckpoint | None, *, inline: bool
    ) -> None:
        self._rundir.note(LaunchEntry(attempt=attempt, num_workers=num_workers, first_seq=first_seq))
        before, self._num_workers = self._num_workers, num_workers
        if before is None:
            self._watcher.say(self._greeting(num_workers, newest, inline=inline))
        elif before != num_workers:
            text = f"continuing with {phrases.count(num_workers, 'worker')} (there were {before})"
            self.record(ResizeEntry(text=text, attempt=attempt, num_workers=num_workers))

    def _greeting(self, num_workers: int, newest: SavedCheckpoint | None, *, inline: bool) -> str:
        rundir = self._rundir
        where = "in this process" if inline else f"with {phrases.count(num_workers, 'worker')}"
        verb, source = "starts", f" from {self._first.path}" if self._first else ""
        if newest is not None:
            verb, source = "resumes", f" from {newest.path.name} (report {_position(newest.manifest)})"
        elif rundir.resumed:
            verb, source = "starts again", source or " from the beginning: there is no checkpoint yet"
        return f"run {rundir.path.name} {verb} {where}{source}; its files: {rundir.url}"

    def tracking(self) -> None:
        """Tell the user if state is tracked, but no setting defines how often it is saved."""
        if not self._saves_regularly:
            text = "tracked state is saved before a stop only: CheckpointConfig(every_reports=...) or (every_s=...)"
            self.tell("tracking", f"{text} saves it regularly, so that a crash costs little")

    def untracked(self, seq: int) -> None:
        """Warn if settings define how often tracked state is saved, but rank 0 reports without tracking any."""
        first = self._every["every_reports"] or 2
        if self._saves_regularly and not self._warned_untracked and seq + 1 >= first:
            self._warned_untracked = True
            asked = ", ".join(f"{name}={value:g}" for name, value in self._every.items() if value)
            text = f"CheckpointConfig({asked}) saves nothing, because the function has not called train.track(), whose"
            self.tell("tracking", f"{text} state it saves", "WARNING")

    def slow_start(self, attempt: int, missing: Collection[int]) -> None:
        text = (
            f"still waiting for {phrases.ranks(missing)} to start"
            if missing
            else "still waiting for the workers to be launched"
        )
        self.record(NoticeEntry(event="starting", text=text, attempt=attempt), "WARNING")

    def preempted(self, ranks: Collection[int], within_s: float, *, program: bool, at_once: bool) -> None:
        """Log a preemption. ``program``: the driver received SIGTERM. ``at_once``: the next report saves."""
        what = "received SIGTERM" if program else f"{phrases.ranks_are(ranks)} preempted"
        then = "" if at_once else f"; continuing until the next checkpoint, {within_s:.0f} s at most"
        text = f"{what}{then}"
        self.record(PreemptionEntry(text=text, ranks=tuple(sorted(ranks)), within_s=within_s), "WARNING")

    def departing(self, leaving: Leaving | None, seq: int | None) -> None:
        """Log the report after which all ranks have agreed to leave."""
        why = {
            "preempt": "workers are preempted: ",
            "resize": "the number of workers changes: ",
        }.get(leaving or "", "")
        self.tell("stopping", f"{why}stopping after report {seq}")

    def retried(self, retried: RecordRetry, checkpoint: SavedCheckpoint | None, newest: Report | None) -> None:
        """Log a restart. ``checkpoint``: where the next attempt starts; ``newest``: the last report of rank 0."""
        attempt = retried.attempt
        beginning = f"from {self._first.path}" if self._first else "from the beginning: there is no checkpoint yet"
        source = f"from {checkpoint.path.name}" if checkpoint else beginning
        where = f"after report {newest.seq}" if newest else "before the first report"
        if retried.why == "resize":
            text = f"attempt {attempt} stopped {where}; resuming {source}"
            return self.record(NoticeEntry(event="resize", text=text, attempt=attempt))
        cause = sentence(retried.failures)
        pause = f" in {phrases.duration(retried.after_s)}" if retried.after_s else ""
        text = f"attempt {attempt} ended {where}: {cause}; restarting{pause} {source}{_lost(checkpoint, newest)}"
        level = "INFO" if retried.why == "preempt" else "WARNING"
        entry = RetryEntry(
            attempt=attempt,
            text=text,
            cause=cause,
            why=retried.why,
            after_s=retried.after_s,
            checkpoint=checkpoint.path.name if checkpoint else None,
        )
        self.record(entry, level)
        if traceback := traceback_text(retried.failures):
            self._watcher.say(traceback, level="WARNING")

    # --- stalls ---

    def stalled(self, attempt: int, diagnosis: Diagnosis, silent_s: float, stacks: Path) -> None:
        entry = StallEntry(
            attempt=attempt,
            text=f"{stillness(diagnosis, silent_s)} (stacks: {stacks})",
            fault=diagnosis.fault,
            ranks=tuple(diagnosis.ranks),
            silent_s=round(silent_s, 1),
        )
        self.record(entry, "WARNING")

    def resumed(self, ranks: Collection[int] | None, silent_s: float) -> None:
        who = "the run" if ranks is None else phrases.ranks(ranks)
        text = f"{who} resumed after {phrases.duration(silent_s)}"
        self.record(StallEntry(text=text, ranks=None if ranks is None else tuple(sorted(ranks))))

    def lasts(self, phase: str, ranks: Collection[int], seconds: float) -> None:
        text = f"{phrases.ranks_are(ranks)} still in the phase “{phase}”, for {phrases.duration(seconds)}"
        self.record(PhaseEntry(text=text, ranks=tuple(sorted(ranks))))


def _lost(checkpoint: SavedCheckpoint | None, newest: Report | None) -> str:
    """Describe the time since the newest checkpoint, which is work that must be repeated."""
    if checkpoint is None or newest is None or newest.seq <= checkpoint.seq:
        return ""
    return f", {phrases.duration(max(0.0, time.time() - checkpoint.manifest.time))} of work lost"


def stillness(diagnosis: Diagnosis, silent_s: float) -> str:
    return f"no progress for {phrases.duration(silent_s)}: {diagnosis.text}"


def _position(manifest: Manifest) -> str:
    """Describe a position: ``5``, or with the data: ``5, epoch 1, 7 batches of loader``, or ``5, after epoch 1``."""
    cursor = manifest.cursor
    epoch = [f"{'after ' if cursor.over else ''}epoch {cursor.epoch}"] if cursor.epoch is not None else []
    batches = [f"{phrases.count(n, 'batch', 'batches')} of {name}" for name, n in (cursor.batches or {}).items()]
    return ", ".join([str(manifest.seq), *epoch, *batches])
