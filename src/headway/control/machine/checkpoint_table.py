"""The checkpoint table: every checkpoint of a run, from the request to commit it until its removal. Pure.

It is the only owner of these facts: what is in flight, what is kept, withdrawn or retired, where uploads go and which
number comes next. It decides; the committer executes.

    request_commit ──▶ in flight ──▶ on_committed ──▶ kept ──▶ retired: better ones exist
                           │                           │
                           ▼                           ▼
                       on_failed: uncommitted      withdraw, drop: withdrawn, no file joins it any more
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from headway.control.machine.report_rounds import SaveHabits
from headway.core.checkpoints import SavedCheckpoint, ValidationRecord, checkpoint_name
from headway.core.config import CheckpointConfig
from headway.core.messages import CheckpointInfo, UploadGrant, UploadRequest
from headway.core.retention import surplus, why_retired
from headway.core.validation import ReportedCheckpointStatus

NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """A checkpoint whose files are uploaded straight to the place where they will stay."""

    seq: int
    number: int
    name: str
    owners: Mapping[str, int] = field(default_factory=dict, hash=False)  # file -> the rank that uploads it


@dataclass(frozen=True, slots=True)
class Retired:
    """A checkpoint that is removed because better ones exist."""

    checkpoint: SavedCheckpoint
    reason: str


@dataclass(frozen=True)
class CheckpointTable:
    """All checkpoints of a run; the second half of the fields belongs to the current attempt.

    Args:
        config: Which checkpoints are kept.
        kept: The committed ones that are kept, the oldest first.
        next_number: Number that no checkpoint has yet.
        permanent: Checkpoints that are never retired.
        held: The checkpoint that the attempt starts from, until every rank has read it.
        requested: Reports whose commit was requested.
        num_pending: Commits, extensions and recoveries that storage has not answered.
        newest_answered: The newest report that storage has answered.
        withdrawn: Reports that have no checkpoint and will have none.
        retired: Reports whose checkpoint was retired.
        uncommitted: Reports whose commit has failed.
        targets: Where uploads go.
    """

    config: CheckpointConfig = field(default_factory=CheckpointConfig)
    kept: tuple[SavedCheckpoint, ...] = ()
    next_number: int = 0
    permanent: frozenset[PurePath] = frozenset()
    held: PurePath | None = None
    requested: frozenset[int] = NOTHING
    num_pending: int = 0
    newest_answered: int = -1
    withdrawn: frozenset[int] = NOTHING
    retired: frozenset[int] = NOTHING
    uncommitted: frozenset[int] = NOTHING
    targets: tuple[UploadTarget, ...] = ()

    @property
    def newest(self) -> SavedCheckpoint | None:
        return self.kept[-1] if self.kept else None

    @property
    def next_seq(self) -> int:
        """Number of the first report after the newest checkpoint."""
        return self.kept[-1].seq + 1 if self.kept else 0

    @property
    def infos(self) -> tuple[CheckpointInfo, ...]:
        """The kept checkpoints, as workers are told of them."""
        committed = ReportedCheckpointStatus.COMMITTED
        return tuple(
            CheckpointInfo(str(each.path), each.metrics, each.validation.status if each.validation else committed)
            for each in self.kept
        )

    def habits(self, num_workers: int) -> SaveHabits:
        """Which ranks gave files to the newest checkpoint, if as many workers made it."""
        newest = self.kept[-1].manifest if self.kept else None
        if newest is None or newest.world_size != num_workers:
            return SaveHabits()
        givers = frozenset(newest.ranks)
        return SaveHabits(give=givers, stay_away=frozenset(range(num_workers)) - givers)

    # --- attempts ---

    def begin_attempt(self) -> CheckpointTable:
        """The same checkpoints, and nothing of the attempt before."""
        return CheckpointTable(self.config, self.kept, self.next_number, self.permanent, self.held)

    def hold_newest(self) -> CheckpointTable:
        """Keep the checkpoint that the attempt starts from, until :meth:`release`, whatever else is kept."""
        return replace(self, held=self.kept[-1].path if self.kept else None)

    def release(self) -> CheckpointTable:
        """Every rank has read the checkpoint that it started from."""
        return replace(self, held=None)

    def unfinished_uploads(self, *, last: bool) -> frozenset[str]:
        """Names of uploads that became no checkpoint; of a ``last`` attempt, what could not be committed stays."""
        stay = {each.path.name for each in self.kept}
        retry = self.recoverable(last=last)
        return frozenset(each.name for each in self.targets if each.seq not in retry) - stay

    def recoverable(self, *, last: bool) -> frozenset[int]:
        """Reports whose files the next opening of the run commits; nobody else will give them again."""
        return self.uncommitted - self.withdrawn if last else NOTHING

    # --- commits ---

    def grant_upload(self, rank: int, request: UploadRequest) -> tuple[CheckpointTable, UploadGrant]:
        """Answer where the files of this rank go, and which of them it uploads: no name is written twice."""
        target = self._target(request.seq)
        if target is None:
            name = request.name or checkpoint_name(self.next_number)
            if name in {each.path.name for each in self.kept} | {each.name for each in self.targets}:
                text = f"there is a checkpoint {name} already: every checkpoint needs a name of its own"
                return self, refusal(request, text)
            target = UploadTarget(request.seq, self.next_number, name)
        if request.name not in (None, target.name):
            text = f"the ranks call this checkpoint by different names: {target.name}, {request.name}"
            return self, refusal(request, text)
        owners = {**dict.fromkeys(request.files, rank), **target.owners}
        others = tuple(each for each in self.targets if each.seq != request.seq)
        table = replace(
            self,
            next_number=max(self.next_number, target.number + 1),
            targets=(*others, replace(target, owners=owners)),
        )
        mine = tuple(file for file in request.files if owners[file] == rank)
        return table, UploadGrant(index=request.index, folder=target.name, files=mine)

    def request_commit(self, seq: int) -> tuple[CheckpointTable, int]:
        """A checkpoint of this report is to be committed: its number."""
        target = self._target(seq)
        number = target.number if target else self.next_number
        requested = self.requested | {seq}
        pending = self.num_pending + 1
        table = replace(self, requested=requested, num_pending=pending, next_number=max(self.next_number, number + 1))
        return table, number

    def request_storage(self) -> CheckpointTable:
        """Late files are to join a checkpoint, or files of a dead worker are to be staged."""
        return replace(self, num_pending=self.num_pending + 1)

    def is_gone(self, seq: int) -> bool:
        """Whether files of this report can join no checkpoint any more."""
        return seq in self.withdrawn or seq in self.retired

    def on_committed(self, seq: int, saved: SavedCheckpoint) -> tuple[CheckpointTable, SavedCheckpoint]:
        """Storage has committed this checkpoint: the table with it, and the checkpoint as it is known now."""
        table = self.on_answered(seq)
        if self.is_gone(saved.seq):
            return table, replace(saved, validation=None)
        known = self.find(saved.path)
        if known is not None and known.validation is not None:
            saved = replace(saved, validation=known.validation)  # the one on disk may still be the former
        return table._with_kept(saved), saved

    def on_failed(self, seq: int) -> CheckpointTable:
        """Storage could not commit this report's files, or could not add any to its checkpoint."""
        is_commit = all(each.seq != seq for each in self.kept) and not self.is_gone(seq)
        table = self.on_answered(seq)
        return replace(table, uncommitted=table.uncommitted | {seq}) if is_commit else table

    def on_answered(self, seq: int | None = None) -> CheckpointTable:
        """Storage has answered one request."""
        newest = max(self.newest_answered, -1 if seq is None else seq)
        return replace(self, num_pending=self.num_pending - 1, newest_answered=newest)

    def on_rejected(self, seq: int) -> CheckpointTable:
        """Late files of this report were turned away: storage has nothing to do for it."""
        return replace(self, newest_answered=max(seq, self.newest_answered))

    def on_validated(self, path: PurePath, record: ValidationRecord) -> tuple[CheckpointTable, SavedCheckpoint | None]:
        """The validation of this checkpoint has ended; None where it is gone."""
        known = self.find(path)
        if known is None:
            return self, None
        validated = replace(known, validation=record)
        return self._with_kept(validated), validated

    def withdraw(self, seq: int) -> CheckpointTable | None:
        """Take back the checkpoint of this report, committed or in flight; None where there is none."""
        if seq not in self.requested or self.is_gone(seq):
            return None
        return replace(self.drop(seq), kept=tuple(each for each in self.kept if each.seq != seq))

    def drop(self, seq: int) -> CheckpointTable:
        """The files of this report become no checkpoint, nor do any that come late."""
        return replace(self, withdrawn=self.withdrawn | {seq})

    def retire(self) -> tuple[CheckpointTable, tuple[Retired, ...]]:
        """Let go of the checkpoints that better ones replace."""
        gone = tuple(
            Retired(each, why_retired(each, self.config))
            for each in surplus(self.kept, self.config)
            if each.path != self.held and each.path not in self.permanent
        )
        if not gone:
            return self, ()
        paths = {each.checkpoint.path for each in gone}
        kept = tuple(each for each in self.kept if each.path not in paths)
        return replace(self, kept=kept, retired=self.retired | {each.checkpoint.seq for each in gone}), gone

    def upload_name(self, seq: int) -> str | None:
        """The name under which this report's files are uploaded, if they are."""
        target = self._target(seq)
        return target.name if target else None

    def find(self, path: PurePath) -> SavedCheckpoint | None:
        return next((each for each in self.kept if each.path == path), None)

    def _target(self, seq: int) -> UploadTarget | None:
        return next((each for each in self.targets if each.seq == seq), None)

    def _with_kept(self, saved: SavedCheckpoint) -> CheckpointTable:
        others = (each for each in self.kept if each.path != saved.path)
        return replace(self, kept=tuple(sorted([*others, saved], key=lambda each: each.seq)))


def refusal(request: UploadRequest, why: str) -> UploadGrant:
    """The answer to an upload that must not happen."""
    return UploadGrant(index=request.index, folder="", files=(), refusal=why)
