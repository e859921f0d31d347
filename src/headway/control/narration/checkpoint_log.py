"""The checkpoint log: journal entries and log lines about checkpoints and their validations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from headway.control.machine.events import (
    Action,
    DropFiles,
    RecoverFiles,
    RetireCheckpoint,
    WithdrawCheckpoint,
)
from headway.control.machine.report_rounds import ClosedRound, ReportRound
from headway.control.narration.event_log import EventLog
from headway.core import phrases
from headway.core.checkpoints import SavedCheckpoint, ValidationRecord
from headway.core.config import CheckpointConfig
from headway.core.retention import value_of
from headway.core.schema.journal_entries import (
    AwaitingFilesEntry,
    CheckpointEntry,
    FileConflictEntry,
    LateFilesEntry,
    PartialCheckpointEntry,
    RecoveringFilesEntry,
    RetiredEntry,
    ValidatedEntry,
    ValidationPendingEntry,
    WithdrawnEntry,
)
from headway.storage.run import layout
from headway.storage.run.run_directory import RunDirectory

SLOW_UPLOAD_S = 2.0  # for uploads longer than this, the user is told the speed


class CheckpointLog:
    """The part of the event log that is about checkpoints."""

    def __init__(self, log: EventLog, rundir: RunDirectory, config: CheckpointConfig) -> None:
        self._log = log
        self._rundir = rundir
        self._score = config.checkpoint_score_attribute
        self._missed_score = False  # whether the user was told that a checkpoint lacks the metric that it is ranked by

    def saved(self, seq: int, attempt: int, saved: SavedCheckpoint) -> None:
        entry = CheckpointEntry(attempt=attempt, path=saved.path.name, seq=seq)
        if saved.seconds:
            entry = replace(entry, seconds=round(saved.seconds, 3), bytes=saved.manifest.size)
        self._rundir.note(entry)
        if saved.seconds >= SLOW_UPLOAD_S:
            size, took = phrases.size(saved.manifest.size), phrases.duration(saved.seconds)
            text = f"{saved.path.name}: {size} in {took}, {phrases.size(saved.manifest.size / saved.seconds)}/s"
            self._log.tell("upload", text)
        for conflict in saved.conflicts:
            kept = f"rank {conflict.ranks[0]}'s was kept"
            who = phrases.ranks(conflict.ranks)
            text = f"{saved.path.name}: {who} reported different versions of {conflict.file}; {kept}"
            if conflict.shared:
                text += (
                    f". All of them saved into {conflict.shared} while others may have been copying it: have only "
                    "one rank save, or give each rank its own directory"
                )
            self._log.record(FileConflictEntry(text=text, file=conflict.file, ranks=conflict.ranks), "WARNING")
        if not saved.awaits_validation:
            self._look_for_score(saved)

    def awaiting(self, ranks: Collection[int], within_s: float | None) -> None:
        text = f"a rank has failed; waiting up to {within_s:g} s for {phrases.ranks(ranks)} to complete its checkpoint"
        self._log.record(AwaitingFilesEntry(text=text, ranks=tuple(sorted(ranks))))

    def storage_action(self, action: Action) -> None:
        """Record what happens to checkpoints, except commits."""
        match action:
            case RetireCheckpoint(saved=saved, reason=reason):
                self._rundir.note(RetiredEntry(path=saved.path.name, seq=saved.seq, why=reason))
            case WithdrawCheckpoint(seq=seq, reason=reason):
                text = f"the checkpoint of report {seq} is withdrawn: {reason}"
                self._log.record(WithdrawnEntry(text=text, seq=seq), "WARNING")
            case RecoverFiles(rank=rank, seq=seq):
                text = f"rank {rank} exited before its files for report {seq} were staged: moving them to storage"
                self._log.record(RecoveringFilesEntry(text=text, rank=rank, seq=seq))
            case DropFiles(closed=closed):
                self._dropped(closed)
            case _:
                pass

    def _dropped(self, closed: ClosedRound) -> None:
        missing = closed.partial or closed.behind
        if not missing:
            places = " and ".join(f"rank {rank}'s state at {place}" for rank, place in closed.apart)
            why, remedy = f"would combine {places}", ": make all ranks report at the same steps and equally often"
        elif closed.partial:
            why, remedy = f"lacks the files of {phrases.ranks(missing)}", ""
            if closed.returned:
                remedy = f": {phrases.ranks(closed.returned)} returned earlier; make all ranks report equally often"
        else:
            why, remedy = f"covers batches that {phrases.ranks(missing)} had not taken yet", ""
        text = f"the checkpoint of report {closed.round.seq} {why} and is dropped{remedy}"
        self._log.record(
            PartialCheckpointEntry(text=text, seq=closed.round.seq, missing=tuple(sorted(missing))), "WARNING"
        )

    def too_late(self, late: ReportRound) -> None:
        text = f"files of {phrases.ranks(late.givers)} for report {late.seq} came too late: its checkpoint was removed"
        self._log.record(LateFilesEntry(text=text, seq=late.seq), "WARNING")

    # --- validations ---

    def awaits_validation(self, name: str, *, in_vain: bool) -> None:
        """Record a validation still pending when the run is opened; ``in_vain``: the trainer has no function for it."""
        if in_vain:
            text = f"{name} awaits its validation and is kept: this trainer has no validation_config"
            self._log.record(ValidationPendingEntry(text=text, path=name), "WARNING")
        else:
            self._log.record(ValidationPendingEntry(text=f"{name} still awaits its validation", path=name))

    def validating(self, number: int) -> None:
        self._log.tell("waiting", f"training has ended; waiting for {phrases.count(number, 'validation')}")

    def validated(self, name: str, validation: ValidationRecord, saved: SavedCheckpoint | None) -> None:
        if validation.error:
            log = layout.validation_log(self._rundir.path, name, "err")
            text = f"the validation of {name} failed: {validation.error}; its output: {log}"
            level = "WARNING"
        else:
            told = phrases.metrics(validation.metrics)
            text, level = f"{name} was validated{f': {told}' if told else ''}", "INFO"
        entry = ValidatedEntry(
            text=text, path=name, status=validation.status, metrics=validation.metrics, error=validation.error or None
        )
        self._log.record(entry, level)
        if saved is not None:
            self._look_for_score(saved)

    def _look_for_score(self, saved: SavedCheckpoint) -> None:
        """Warn once if a checkpoint lacks the metric that it should be ranked by."""
        if self._score is not None and value_of(saved, self._score) is None and not self._missed_score:
            self._missed_score = True
            metrics = phrases.flat(saved.metrics)
            known = f"it has {', '.join(metrics) or 'none at all'}"
            if self._score in metrics:
                known = f"{self._score} is {metrics[self._score]!r}"
            ranked = f"has no metric {self._score!r} to rank it by: it counts as the worst ({known})"
            self._log.tell("score", f"{saved.path.name} {ranked}", "WARNING")
