"""The event log: each event of a run becomes a line in the journal, and one sentence for the user."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from headway.control.machine.events import (
    Action,
    DropFiles,
    RecordRetry,
    RecoverFiles,
    RetireCheckpoint,
    WithdrawCheckpoint,
)
from headway.control.machine.report_rounds import ClosedRound, ReportRound
from headway.control.machine.state import Leaving
from headway.control.narration.failure_text import sentence, traceback_text
from headway.core import phrases
from headway.core.checkpoints import Manifest, SavedCheckpoint, ValidationRecord
from headway.core.config import CheckpointConfig
from headway.core.messages import Report
from headway.core.retention import value_of
from headway.core.schema.journal_entries import (
    AwaitingFilesEntry,
    CheckpointEntry,
    FileConflictEntry,
    LateFilesEntry,
    LaunchEntry,
    NoticeEntry,
    PartialCheckpointEntry,
    PhaseEntry,
    PreemptionEntry,
    RecoveringFilesEntry,
    ResizeEntry,
    RetiredEntry,
    RetryEntry,
    StallEntry,
    TextEntry,
    ValidatedEntry,
    ValidationPendingEntry,
    WithdrawnEntry,
)
from headway.diagnosis.verdict import Diagnosis
from headway.observe.run_observer import RunObserver
from headway.storage.run import layout
from headway.storage.run.run_directory import RunDirectory

SLOW_UPLOAD_S = 2.0  # from here on a person wants to know how fast files travel


class EventLog:
    def __init__(self, rundir: RunDirectory, watcher: RunObserver, config: CheckpointConfig) -> None:
        self._rundir = rundir
        self._watcher = watcher
        self._score = config.checkpoint_score_attribute
        self._every = {"every_reports": config.every_reports, "every_s": config.every_s}
        self._saves_regularly = any(self._every.values())
        self._told_untracked = False
        self._missed_score = False  # whether we have said that a checkpoint lacks the metric to rank it by
        self._num_workers: int | None = None  # of the attempt before
        self._disk_trouble = False  # whether we have said that the journal cannot be written

    def tell(self, event: str, text: str, level: str = "INFO") -> None:
        """Record an event that is no more than its text, and say the text."""
        self.record(NoticeEntry(event=event, text=text), level)

    def record(self, entry: TextEntry, level: str = "INFO") -> None:
        """Record an entry, and say its text."""
        self._rundir.note(entry)
        self._watcher.say(entry.text, level=level)

    def watch_disk(self) -> None:
        """Say once that journal and metrics cannot be written."""
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
        verb = "resumes" if rundir.resumed else "starts"
        source = f" from {newest.path.name} (report {_position(newest.manifest)})" if newest else ""
        return f"run {rundir.path.name} {verb} {where}{source}; its files: {rundir.url}"

    def tracking(self) -> None:
        """State is tracked, and no setting says how often it is saved."""
        if not self._saves_regularly:
            text = "tracked state is saved before a stop only: CheckpointConfig(every_reports=...) or (every_s=...)"
            self.tell("tracking", f"{text} saves it regularly, so that a crash costs little")

    def untracked(self, seq: int) -> None:
        """Settings say how often tracked state is saved, and rank 0 has reported without tracking any."""
        first = self._every["every_reports"] or 2
        if self._saves_regularly and not self._told_untracked and seq + 1 >= first:
            self._told_untracked = True
            asked = ", ".join(f"{name}={value:g}" for name, value in self._every.items() if value)
            text = f"CheckpointConfig({asked}) saves nothing: it says how often state in train.track() is saved, and"
            self.tell("tracking", f"{text} the function has not called it", "WARNING")

    def slow_start(self, attempt: int, missing: Collection[int]) -> None:
        text = (
            f"still waiting for {phrases.ranks(missing)} to start"
            if missing
            else "still waiting for the workers to be launched"
        )
        self.record(NoticeEntry(event="starting", text=text, attempt=attempt), "WARNING")

    def preempted(self, ranks: Collection[int], within_s: float, *, program: bool, at_once: bool) -> None:
        """``program``: the driver received SIGTERM. ``at_once``: state is saved in the next report."""
        what = "received SIGTERM" if program else f"{phrases.ranks_are(ranks)} preempted"
        then = "" if at_once else f"; continuing until the next checkpoint, {within_s:.0f} s at most"
        text = f"{what}{then}"
        self.record(PreemptionEntry(text=text, ranks=tuple(sorted(ranks)), within_s=within_s), "WARNING")

    def departing(self, leaving: Leaving | None, seq: int | None) -> None:
        """All ranks have agreed on the report in which they leave."""
        why = {
            "terminate": "received SIGTERM: ",
            "preempt": "workers are preempted: ",
            "resize": "the number of workers changes: ",
        }.get(leaving or "", "")
        self.tell("stopping", f"{why}stopping after report {seq}")

    def retried(self, retried: RecordRetry, checkpoint: SavedCheckpoint | None, newest: Report | None) -> None:
        """``checkpoint``: where the next attempt starts; ``newest``: the last report of rank 0."""
        attempt = retried.attempt
        source = f"from {checkpoint.path.name}" if checkpoint else "from the beginning: there is no checkpoint yet"
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

    # --- checkpoints ---

    def saved(self, seq: int, attempt: int, saved: SavedCheckpoint) -> None:
        entry = CheckpointEntry(attempt=attempt, path=saved.path.name, seq=seq)
        if saved.seconds:
            entry = replace(entry, seconds=round(saved.seconds, 3), bytes=saved.manifest.size)
        self._rundir.note(entry)
        if saved.seconds >= SLOW_UPLOAD_S:
            size, took = phrases.size(saved.manifest.size), phrases.duration(saved.seconds)
            text = f"{saved.path.name}: {size} in {took}, {phrases.size(saved.manifest.size / saved.seconds)}/s"
            self.tell("upload", text)
        for conflict in saved.conflicts:
            kept = f"rank {conflict.ranks[0]}'s was kept"
            who = phrases.ranks(conflict.ranks)
            text = f"{saved.path.name}: {who} gave different contents for {conflict.file}; {kept}"
            if conflict.shared:
                text += (
                    f". All saved into {conflict.shared}, each while another may have copied it: let one rank save, "
                )
                text += "or give each rank a directory of its own"
            self.record(FileConflictEntry(text=text, file=conflict.file, ranks=conflict.ranks), "WARNING")
        if not saved.awaits_validation:
            self._look_for_score(saved)

    def awaiting(self, ranks: Collection[int], within_s: float | None) -> None:
        text = f"a rank has failed; waiting up to {within_s:g} s for {phrases.ranks(ranks)} to complete its checkpoint"
        self.record(AwaitingFilesEntry(text=text, ranks=tuple(sorted(ranks))))

    def storage_action(self, action: Action) -> None:
        """Record what happens to checkpoints, other than that they are committed."""
        match action:
            case RetireCheckpoint(saved=saved, reason=reason):
                self._rundir.note(RetiredEntry(path=saved.path.name, seq=saved.seq, why=reason))
            case WithdrawCheckpoint(seq=seq, reason=reason):
                text = f"the checkpoint of report {seq} is withdrawn: {reason}"
                self.record(WithdrawnEntry(text=text, seq=seq), "WARNING")
            case RecoverFiles(rank=rank, seq=seq):
                text = f"rank {rank} has exited before its files for report {seq} were staged: bringing them to storage"
                self.record(RecoveringFilesEntry(text=text, rank=rank, seq=seq))
            case DropFiles(closed=closed):
                self._dropped(closed)
            case _:
                pass

    def _dropped(self, closed: ClosedRound) -> None:
        missing = closed.partial or closed.behind
        if not missing:
            places = " and ".join(f"rank {rank}'s state at {place}" for rank, place in closed.apart)
            why, remedy = f"would hold {places}", ": let all ranks report in the same steps, equally often"
        elif closed.partial:
            why, remedy = f"lacks the files of {phrases.ranks(missing)}", ""
        else:
            why, remedy = f"is ahead of the batches that {phrases.ranks(missing)} had taken", ""
        text = f"the checkpoint of report {closed.round.seq} {why} and is dropped{remedy}"
        self.record(PartialCheckpointEntry(text=text, seq=closed.round.seq, missing=tuple(sorted(missing))), "WARNING")

    def too_late(self, late: ReportRound) -> None:
        text = f"files of {phrases.ranks(late.givers)} for report {late.seq} came too late: its checkpoint was removed"
        self.record(LateFilesEntry(text=text, seq=late.seq), "WARNING")

    # --- validations ---

    def awaits_validation(self, name: str, *, in_vain: bool) -> None:
        """An earlier opening of the run has left it pending; ``in_vain``: the trainer has no function for it."""
        if in_vain:
            text = f"{name} awaits its validation and is kept: this trainer has no validation_config"
            self.record(ValidationPendingEntry(text=text, path=name), "WARNING")
        else:
            self.record(ValidationPendingEntry(text=f"{name} still awaits its validation", path=name))

    def validating(self, number: int) -> None:
        self.tell("waiting", f"training is over; waiting for {phrases.count(number, 'validation')}")

    def validated(self, name: str, validation: ValidationRecord, saved: SavedCheckpoint | None) -> None:
        if validation.error:
            log = layout.validation_log(self._rundir.path, name, "err")
            text = f"the validation of {name} failed: {validation.error}; its output: {log}"
            level = "WARNING"
        else:
            told = phrases.metrics(validation.metrics)
            text, level = f"{name} is validated{f': {told}' if told else ''}", "INFO"
        entry = ValidatedEntry(
            text=text, path=name, status=validation.status, metrics=validation.metrics, error=validation.error or None
        )
        self.record(entry, level)
        if saved is not None:
            self._look_for_score(saved)

    def _look_for_score(self, saved: SavedCheckpoint) -> None:
        """Say once that a checkpoint lacks the metric that it should be ranked by."""
        if self._score is not None and value_of(saved, self._score) is None and not self._missed_score:
            self._missed_score = True
            known = ", ".join(phrases.flat(saved.metrics)) or "none at all"
            ranked = f"has no metric {self._score!r} to be ranked by: it counts as the worst (it has {known})"
            self.tell("score", f"{saved.path.name} {ranked}", "WARNING")


def _lost(checkpoint: SavedCheckpoint | None, newest: Report | None) -> str:
    """The time since the newest checkpoint: work that must be repeated."""
    if checkpoint is None or newest is None or newest.seq <= checkpoint.seq:
        return ""
    return f", {phrases.duration(max(0.0, time.time() - checkpoint.manifest.time))} of work lost"


def stillness(diagnosis: Diagnosis, silent_s: float) -> str:
    return f"no progress for {phrases.duration(silent_s)}: {diagnosis.text}"


def _position(manifest: Manifest) -> str:
    """``5``, or with the position in the data: ``5, epoch 1, 7 batches of loader``, or ``5, after epoch 1``."""
    cursor = manifest.cursor
    epoch = [f"{'after ' if cursor.over else ''}epoch {cursor.epoch}"] if cursor.epoch is not None else []
    batches = [f"{phrases.count(n, 'batch', 'batches')} of {name}" for name, n in (cursor.batches or {}).items()]
    return ", ".join([str(manifest.seq), *epoch, *batches])
