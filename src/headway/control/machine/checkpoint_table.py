"""The checkpoint table: every checkpoint of a run, from the request to commit it until its removal. Pure.

It is the only owner of these facts: what is in flight, what is kept, withdrawn or retired, where uploads go and which
number comes next. It decides; the committer executes.

    request_commit ──▶ in flight ──▶ on_committed ──▶ kept ──▶ retired: better ones exist
                           │                           │
                           ▼                           ▼
                       on_failed: uncommitted      withdraw, drop: withdrawn, no file joins it any more
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
        all: The checkpoints, the oldest first.
        config: Which of them are kept.
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
        """Number of the first report after the newest checkpoint."""
        return self.all[-1].seq + 1 if self.all else 0

    def habits(self, num_workers: int) -> SaveHabits:
        """Which ranks gave files to the newest checkpoint, if as many workers made it."""
        newest = self.all[-1].manifest if self.all else None
        if newest is None or newest.world_size != num_workers:
            return SaveHabits()
        givers = frozenset(newest.ranks)
        return SaveHabits(give=givers, stay_away=frozenset(range(num_workers)) - givers)

    def infos(self) -> tuple[CheckpointInfo, ...]:
        """The checkpoints as workers are told of them."""
        committed = ReportedCheckpointStatus.COMMITTED
        return tuple(
            CheckpointInfo(str(each.path), each.metrics, each.validation.status if each.validation else committed)
            for each in self.all
        )

    def find(self, path: PurePath) -> SavedCheckpoint | None:
        return next((each for each in self.all if each.path == path), None)

    def including(self, saved: SavedCheckpoint) -> KeptCheckpoints:
        """With this checkpoint, in place of an earlier one of the same path."""
        others = (each for each in self.all if each.path != saved.path)
        return replace(self, all=tuple(sorted([*others, saved], key=lambda each: each.seq)))

    def retire(self) -> tuple[KeptCheckpoints, tuple[Retired, ...]]:
        """Without the checkpoints that better ones replace."""
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
        next_number: Number that no checkpoint has yet.
        num_pending: Commits, extensions and recoveries that storage has not answered.
        newest_answered: The newest report that storage has answered.
        requested: Reports whose commit was requested.
        withdrawn: Reports that have no checkpoint and will have none.
        retired: Reports whose checkpoint was retired.
        uncommitted: Reports whose commit has failed.
        uploads: Checkpoints whose files are uploaded straight to where they will stay.
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
        """The same checkpoints, and nothing of the attempt before."""
        return CheckpointTable(self.kept, self.next_number)

    def hold_newest(self) -> CheckpointTable:
        """Keep the checkpoint that the attempt starts from, until :meth:`release`, whatever else is kept."""
        newest = self.kept.newest
        return replace(self, kept=replace(self.kept, held=newest.path if newest else None))

    def release(self) -> CheckpointTable:
        """Every rank has read the checkpoint that it started from."""
        return replace(self, kept=replace(self.kept, held=None))

    def unfinished_uploads(self, *, last: bool) -> frozenset[str]:
        """Names of uploads that became no checkpoint; of a ``last`` attempt, what could not be committed stays."""
        names = self.uploads.names_except(self.recoverable(last=last))
        return names - {each.path.name for each in self.kept.all}

    def recoverable(self, *, last: bool) -> frozenset[int]:
        """Reports whose files the next opening of the run commits; no rank gives them again."""
        return self.uncommitted - self.withdrawn if last else NONE

    # --- requests to storage ---

    def grant_upload(self, rank: int, request: UploadRequest) -> tuple[CheckpointTable, UploadGrant]:
        """Answer where the files of this rank go, and which of them it uploads: no name is written twice."""
        taken = {each.path.name for each in self.kept.all}
        uploads, grant = self.uploads.grant(rank, request, self.next_number, taken)
        number = uploads.number_of(request.seq)
        next_number = self.next_number if number is None else max(self.next_number, number + 1)
        return replace(self, uploads=uploads, next_number=next_number), grant

    def request_commit(self, seq: int) -> tuple[CheckpointTable, int]:
        """A checkpoint of this report is to be committed: its number."""
        uploaded = self.uploads.number_of(seq)
        number = self.next_number if uploaded is None else uploaded
        table = replace(self, requested=self.requested | {seq}, next_number=max(self.next_number, number + 1))
        return table.request_storage(), number

    def request_storage(self) -> CheckpointTable:
        """Storage is to answer one request more: a commit, an extension or a recovery."""
        return replace(self, num_pending=self.num_pending + 1)

    def is_gone(self, seq: int) -> bool:
        """Whether files of this report can join no checkpoint any more."""
        return seq in self.withdrawn or seq in self.retired

    # --- what happens to them ---

    def on_answered(self, seq: int = -1) -> CheckpointTable:
        """Storage has answered one request."""
        return replace(self, num_pending=self.num_pending - 1, newest_answered=max(seq, self.newest_answered))

    def on_committed(self, seq: int, saved: SavedCheckpoint) -> tuple[CheckpointTable, SavedCheckpoint]:
        """Storage has committed this checkpoint: the table with it, and the checkpoint as it is known now."""
        table = self.on_answered(seq)
        if self.is_gone(saved.seq):
            return table, replace(saved, validation=None)
        known = self.kept.find(saved.path)
        if known is not None and known.validation is not None:
            saved = replace(saved, validation=known.validation)  # the one on disk may still be the former
        return replace(table, kept=table.kept.including(saved)), saved

    def on_failed(self, seq: int) -> CheckpointTable:
        """Storage could not commit this report's files, or could not add any to its checkpoint."""
        is_commit = all(each.seq != seq for each in self.kept.all) and not self.is_gone(seq)
        table = self.on_answered(seq)
        return replace(table, uncommitted=table.uncommitted | {seq}) if is_commit else table

    def on_rejected(self, seq: int) -> CheckpointTable:
        """Late files of this report were turned away: storage has nothing to do for it."""
        return replace(self, newest_answered=max(seq, self.newest_answered))

    def on_validated(self, path: PurePath, record: ValidationRecord) -> tuple[CheckpointTable, SavedCheckpoint | None]:
        """The validation of this checkpoint has ended; None where it is gone."""
        known = self.kept.find(path)
        if known is None:
            return self, None
        validated = replace(known, validation=record)
        return replace(self, kept=self.kept.including(validated)), validated

    def withdraw(self, seq: int) -> CheckpointTable | None:
        """Take back the checkpoint of this report, committed or in flight; None where there is none."""
        if seq not in self.requested or self.is_gone(seq):
            return None
        remaining = tuple(each for each in self.kept.all if each.seq != seq)
        return replace(self.drop(seq), kept=replace(self.kept, all=remaining))

    def drop(self, seq: int) -> CheckpointTable:
        """The files of this report become no checkpoint, nor do any that come late."""
        return replace(self, withdrawn=self.withdrawn | {seq})

    def retire(self) -> tuple[CheckpointTable, tuple[Retired, ...]]:
        """Let go of the checkpoints that better ones replace."""
        kept, gone = self.kept.retire()
        if not gone:
            return self, ()
        return replace(self, kept=kept, retired=self.retired | {each.checkpoint.seq for each in gone}), gone
