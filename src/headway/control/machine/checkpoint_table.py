"""The checkpoint table: every checkpoint of a run, from the request to commit it until its removal. Pure.

It alone records which checkpoints are in flight, kept, withdrawn or retired, where uploads go and what the next number
is. It decides; the committer executes.

    request_commit ──▶ in flight ──▶ on_committed ──▶ kept ──▶ retired: better ones exist
                           │                           │
                           ▼                           ▼
                       on_failed: uncommitted      withdraw, drop: withdrawn, accepts no more files
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import PurePath

from headway.control.machine.report_rounds import SaveHabits
from headway.control.machine.uploads import Uploads
from headway.core.checkpoints import SavedCheckpoint, ValidationRecord
from headway.core.config import CheckpointConfig
from headway.core.messages import CheckpointInfo, UploadGrant, UploadRequest
from headway.core.retention import surplus, why_retired
from headway.core.validation import ReportedCheckpointStatus

NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Retired:
    """A checkpoint that is removed because better ones exist."""

    checkpoint: SavedCheckpoint
    reason: str


@dataclass(frozen=True)
class KeptCheckpoints:
    """The committed checkpoints of a run.

    Args:
        all: The checkpoints, oldest first.
        config: Settings that decide which of them are kept.
        permanent: Checkpoints that are never retired.
        held: The checkpoint that the attempt starts from, until every rank has read it.
    """

    all: tuple[SavedCheckpoint, ...] = ()
    config: CheckpointConfig = field(default_factory=CheckpointConfig)
    permanent: frozenset[PurePath] = frozenset()
    held: PurePath | None = None

    @property
    def newest(self) -> SavedCheckpoint | None:
        return self.all[-1] if self.all else None

    @property
    def next_seq(self) -> int:
        """The number of the first report after the newest checkpoint."""
        return self.all[-1].seq + 1 if self.all else 0

    def habits(self, num_workers: int) -> SaveHabits:
        """Return which ranks gave files to the newest checkpoint, if it was made by the same number of workers."""
        newest = self.all[-1].manifest if self.all else None
        if newest is None or newest.world_size != num_workers:
            return SaveHabits()
        givers = frozenset(newest.ranks)
        return SaveHabits(give=givers, stay_away=frozenset(range(num_workers)) - givers)

    def infos(self) -> tuple[CheckpointInfo, ...]:
        """Return the checkpoints in the form that is sent to workers."""
        committed = ReportedCheckpointStatus.COMMITTED
        return tuple(
            CheckpointInfo(str(each.path), each.metrics, each.validation.status if each.validation else committed)
            for each in self.all
        )

    def find(self, path: PurePath) -> SavedCheckpoint | None:
        return next((each for each in self.all if each.path == path), None)

    def including(self, saved: SavedCheckpoint) -> KeptCheckpoints:
        """Add this checkpoint; it replaces an earlier one with the same path."""
        others = (each for each in self.all if each.path != saved.path)
        return replace(self, all=tuple(sorted([*others, saved], key=lambda each: each.seq)))

    def retire(self) -> tuple[KeptCheckpoints, tuple[Retired, ...]]:
        """Remove the checkpoints that are retired because better ones exist."""
        gone = tuple(
            Retired(each, why_retired(each, self.config))
            for each in surplus(self.all, self.config)
            if each.path != self.held and each.path not in self.permanent
        )
        paths = {each.checkpoint.path for each in gone}
        return replace(self, all=tuple(each for each in self.all if each.path not in paths)), gone


@dataclass(frozen=True)
class CheckpointTable:
    """All checkpoints of a run; everything but the first two fields belongs to the current attempt.

    Args:
        kept: The committed checkpoints.
        next_number: The number of the next checkpoint.
        num_pending: Commits, extensions and recoveries that storage has not answered.
        newest_answered: The newest report that storage has answered.
        requested: Reports whose commit was requested.
        withdrawn: Reports that have no checkpoint and will never have one.
        retired: Reports whose checkpoint was retired.
        uncommitted: Reports with files that storage could not commit.
        uploads: Checkpoints whose files are uploaded directly to their final location.
    """

    kept: KeptCheckpoints = field(default_factory=KeptCheckpoints)
    next_number: int = 0
    num_pending: int = 0
    newest_answered: int = -1
    requested: frozenset[int] = NONE
    withdrawn: frozenset[int] = NONE
    retired: frozenset[int] = NONE
    uncommitted: frozenset[int] = NONE
    uploads: Uploads = field(default_factory=Uploads)

    # --- attempts ---

    def begin_attempt(self) -> CheckpointTable:
        """Keep the checkpoints, and forget everything else about the previous attempt."""
        return CheckpointTable(self.kept, self.next_number)

    def hold_newest(self) -> CheckpointTable:
        """Keep the checkpoint that the attempt starts from until :meth:`release`, whatever the retention settings."""
        newest = self.kept.newest
        return replace(self, kept=replace(self.kept, held=newest.path if newest else None))

    def release(self) -> CheckpointTable:
        """Stop holding the checkpoint that the attempt started from, because every rank has read it."""
        return replace(self, kept=replace(self.kept, held=None))

    def unfinished_uploads(self, *, last: bool) -> frozenset[str]:
        """Return the uploads that did not become checkpoints; after the ``last`` attempt, without failed commits."""
        names = self.uploads.names_except(self.recoverable(last=last))
        return names - {each.path.name for each in self.kept.all}

    def recoverable(self, *, last: bool) -> frozenset[int]:
        """Return the reports whose files are to be committed when the run is next opened: no rank gives them again."""
        return self.uncommitted - self.withdrawn if last else NONE

    # --- requests to storage ---

    def grant_upload(self, rank: int, request: UploadRequest) -> tuple[CheckpointTable, UploadGrant]:
        """Decide where the files of this rank go, and which of them it uploads, so that no file is uploaded twice."""
        taken = {each.path.name for each in self.kept.all}
        uploads, grant = self.uploads.grant(rank, request, self.next_number, taken)
        number = uploads.number_of(request.seq)
        next_number = self.next_number if number is None else max(self.next_number, number + 1)
        return replace(self, uploads=uploads, next_number=next_number), grant

    def request_commit(self, seq: int) -> tuple[CheckpointTable, int]:
        """Record that a checkpoint of this report is to be committed, and return the number of the checkpoint."""
        uploaded = self.uploads.number_of(seq)
        number = self.next_number if uploaded is None else uploaded
        table = replace(self, requested=self.requested | {seq}, next_number=max(self.next_number, number + 1))
        return table.request_storage(), number

    def request_storage(self) -> CheckpointTable:
        """Count one more request that storage is to answer: a commit, an extension or a recovery."""
        return replace(self, num_pending=self.num_pending + 1)

    def is_gone(self, seq: int) -> bool:
        """Whether it is too late for files of this report to become part of a checkpoint."""
        return seq in self.withdrawn or seq in self.retired

    # --- what happens to checkpoints ---

    def on_answered(self, seq: int = -1) -> CheckpointTable:
        """Record that storage has answered one request."""
        return replace(self, num_pending=self.num_pending - 1, newest_answered=max(seq, self.newest_answered))

    def on_committed(self, seq: int, saved: SavedCheckpoint) -> tuple[CheckpointTable, SavedCheckpoint]:
        """Record a committed checkpoint; return the table, and the checkpoint with its newest validation record."""
        table = self.on_answered(seq)
        table = replace(table, next_number=max(table.next_number, saved.manifest.number + 1))
        if self.is_gone(saved.seq):
            return table, replace(saved, validation=None)
        known = self.kept.find(saved.path)
        if known is not None and known.validation is not None:
            saved = replace(saved, validation=known.validation)  # the validation on disk may be outdated
        return replace(table, kept=table.kept.including(saved)), saved

    def on_failed(self, seq: int) -> CheckpointTable:
        """Record that storage could not commit this report's files, or could not add late files to its checkpoint."""
        table = self.on_answered(seq)
        return table if self.is_gone(seq) else replace(table, uncommitted=table.uncommitted | {seq})

    def on_rejected(self, seq: int) -> CheckpointTable:
        """Record that late files of this report were rejected, which counts as an answer without a request."""
        return replace(self, newest_answered=max(seq, self.newest_answered))

    def on_validated(self, path: PurePath, record: ValidationRecord) -> tuple[CheckpointTable, SavedCheckpoint | None]:
        """Record the end of a validation; return the checkpoint, or None if it no longer exists."""
        known = self.kept.find(path)
        if known is None:
            return self, None
        validated = replace(known, validation=record)
        return replace(self, kept=self.kept.including(validated)), validated

    def withdraw(self, seq: int) -> CheckpointTable | None:
        """Withdraw the checkpoint of this report, committed or in flight; return None if there is none."""
        if seq not in self.requested or self.is_gone(seq):
            return None
        remaining = tuple(each for each in self.kept.all if each.seq != seq)
        return replace(self.drop(seq), kept=replace(self.kept, all=remaining))

    def drop(self, seq: int) -> CheckpointTable:
        """Record that the files of this report, including late ones, do not become a checkpoint."""
        return replace(self, withdrawn=self.withdrawn | {seq})

    def retire(self) -> tuple[CheckpointTable, tuple[Retired, ...]]:
        """Retire the checkpoints that better ones replace."""
        kept, gone = self.kept.retire()
        if not gone:
            return self, ()
        return replace(self, kept=kept, retired=self.retired | {each.checkpoint.seq for each in gone}), gone
