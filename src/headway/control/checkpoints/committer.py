"""What the run has reached, and the only hand that writes it down.

The controller's thread appends to the metrics; turning staged files into checkpoints, and taking old ones away, is
done by one committer thread, in order, which answers with an event. Frozen values go in, events come out; nothing
is shared.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import threading
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from headway.control.machine.events import CommitDoneEvent, CommitFailedEvent, SaveFinishedEvent
from headway.control.machine.report_rounds import ReportRound, SaveHabits
from headway.core.checkpoints import SavedCheckpoint, ValidationRecord
from headway.core.config import CheckpointConfig
from headway.core.errors import StorageError
from headway.core.messages import CheckpointInfo, Report, UploadGrant, UploadRequest
from headway.core.retention import surplus, why_retired
from headway.core.schema.data_cursor import merged
from headway.core.schema.journal_entries import RetiredEntry
from headway.core.schema.metrics_lines import attempt_line, report_line
from headway.core.validation import ReportedCheckpointStatus
from headway.storage.checkpoint.commit import CommitRequest
from headway.storage.object_store.lease import LeaseLost
from headway.storage.run import layout
from headway.storage.run.run_directory import RunDirectory

NICE = 10


@dataclass(frozen=True)
class WarningEvent:
    """Something that does not matter for the run went wrong, and should be said."""

    text: str
    about: str = "storage"


@dataclass
class UploadTarget:
    """A checkpoint whose files are on their way to where they will stay."""

    number: int
    name: str | None
    owners: dict[str, int] = field(default_factory=dict)  # file -> the rank that puts it there


Post = Callable[[CommitDoneEvent | CommitFailedEvent | SaveFinishedEvent | WarningEvent], None]


class CheckpointCommitter:
    """Belongs to the controller's thread, all of it but the jobs that it hands to its committer."""

    def __init__(self, rundir: RunDirectory, config: CheckpointConfig) -> None:
        self._rundir = rundir
        self._config = config
        self._lines: list[bytes] = []
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._unwanted: dict[PurePath, str] = {}  # the committer's: checkpoints to be removed -> what was said of it
        self._asked: set[int] = set()  # of this attempt: seqs that were handed to the committer
        self._paths: dict[int, PurePath] = {}  # the committer's: seq of this attempt -> its checkpoint
        self._held: PurePath | None = None  # what this attempt began with, while a rank may not have read it
        self._allotted: dict[int, UploadTarget] = {}  # of this attempt: seq -> what was said where its files go
        self._uncommitted: set[int] = set()  # the committer's, of this attempt: seqs whose commit has failed
        self._withdrawn: set[int] = set()  # of this attempt: seqs that have no checkpoint and will have none
        self._retired: set[int] = set()  # of this attempt: seqs whose checkpoint had to make room for better ones
        self.kept = list(rundir.recovered.kept)
        self._vault = rundir.vault
        self._next_number = max(rundir.kept_vault.next_number(), rundir.vault.next_number())
        self.newest_report: Report | None = None  # of rank 0

    def open(self, post: Post) -> None:
        self._post = post
        self._committer = threading.Thread(target=self._work, name="headway-committer", daemon=True)
        self._committer.start()
        self._retire()

    def close(self) -> None:
        """Returns when everything that was asked for is on disk."""
        try:
            self.flush()
        finally:
            self._jobs.put(None)
            self._committer.join()

    # --- metrics ---

    @property
    def next_seq(self) -> int:
        """Where reports go on: after the newest checkpoint."""
        return self.kept[-1].manifest.seq + 1 if self.kept else 0

    def habits(self, num_workers: int) -> SaveHabits:
        """What the newest checkpoint tells of as many ranks as made it."""
        newest = self.kept[-1].manifest if self.kept else None
        if newest is None or newest.world_size != num_workers:
            return SaveHabits()
        givers = frozenset(newest.ranks)
        return SaveHabits(give=givers, stay_away=frozenset(range(num_workers)) - givers)

    def begin_attempt(self, attempt: int, first_seq: int) -> None:
        """Reports from ``first_seq`` on will come anew; readers drop what an earlier attempt said of them."""
        self._asked.clear()
        self._jobs.put(self._paths.clear)
        self._jobs.put(self._uncommitted.clear)
        self._allotted.clear()
        self._withdrawn.clear()
        self._retired.clear()
        self._lines.append(attempt_line(attempt, first_seq))

    def record(self, attempt: int, rank: int, report: Report) -> None:
        if rank == 0:
            self.newest_report = report
        self._lines.append(report_line(attempt, rank, report.seq, report.time, report.metrics))

    def flush(self) -> None:
        """Write what has been recorded, once per batch of events."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._rundir.record(b"".join(lines))

    # --- checkpoints ---

    def allot(self, rank: int, claim: UploadRequest) -> UploadGrant:
        """Where this rank's files go, and which of them it shall put there: no name is written twice."""
        allotted = self._allotted.get(claim.seq)
        try:
            self._vault.fence()
        except StorageError as error:
            return _refused(claim, str(error))
        if allotted is None:
            number = self._take_number()
            name = claim.name or layout.checkpoint_name(number)
            if name in {saved.path.name for saved in self.kept} | {each.name for each in self._allotted.values()}:
                return _refused(
                    claim, f"there is a checkpoint {name} already: every checkpoint needs a name of its own"
                )
            allotted = self._allotted[claim.seq] = UploadTarget(number, name)
        assert allotted.name is not None
        if claim.name not in (None, allotted.name):
            return _refused(claim, f"the ranks call this checkpoint by different names: {allotted.name}, {claim.name}")
        mine = tuple(file for file in claim.files if allotted.owners.setdefault(file, rank) == rank)
        return UploadGrant(index=claim.index, folder=allotted.name, files=mine)

    def _take_number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def commit(self, attempt: int, closing: ReportRound) -> None:
        """Have this round's files made a checkpoint; CommitDone or CommitFailed will follow."""
        allotted = self._allotted.get(closing.seq) or UploadTarget(self._take_number(), None)
        save = functools.partial(self._commit, attempt, closing, allotted.number, allotted.name)
        self._asked.add(closing.seq)
        self._jobs.put(functools.partial(self._answer, attempt, closing.seq, save))

    def extend(self, attempt: int, late: ReportRound) -> bool:
        """Have late files added to their round's checkpoint, answered like a commit; False where it is gone."""
        if late.seq in self._withdrawn or late.seq in self._retired:
            return False
        if late.seq not in self._asked:
            self.commit(attempt, late)
            return True
        (rank,) = late.givers
        add = functools.partial(self._extend, attempt, late.seq, rank)
        self._jobs.put(functools.partial(self._answer, attempt, late.seq, add))
        return True

    def finish(self, attempt: int, rank: int, seq: int) -> None:
        """Have files brought to storage whose worker has died; SaveFinished will follow."""
        self._jobs.put(functools.partial(self._finish, attempt, rank, seq))

    def committed(self, saved: SavedCheckpoint) -> SavedCheckpoint:
        """Count a checkpoint in, and let go of those that it makes superfluous; gives it as it is known now."""
        if saved.manifest.seq in self._withdrawn | self._retired:
            return replace(saved, validation=None)
        before = self._find(saved.path)
        if before is not None and before.validation is not None:
            saved = replace(saved, validation=before.validation)  # what we know may not be written down yet
        self._count_in(saved)
        return saved

    def validated(self, path: PurePath, validation: ValidationRecord) -> SavedCheckpoint | None:
        """Its validation is over: write that down and rank it anew; None where it is gone meanwhile."""
        before = self._find(path)
        if before is None:
            return None
        self._jobs.put(functools.partial(self._note_validation, path, validation))
        saved = replace(before, validation=validation)
        self._count_in(saved)
        return saved

    def known(self) -> tuple[CheckpointInfo, ...]:
        """All that is kept, with what is known of it."""
        committed = ReportedCheckpointStatus.COMMITTED
        return tuple(
            CheckpointInfo(str(each.path), each.metrics, each.validation.status if each.validation else committed)
            for each in self.kept
        )

    def _find(self, path: PurePath) -> SavedCheckpoint | None:
        return next((each for each in self.kept if each.path == path), None)

    def _count_in(self, saved: SavedCheckpoint) -> None:
        self.kept = [*(other for other in self.kept if other.path != saved.path), saved]
        self.kept.sort(key=lambda each: each.manifest.seq)
        self._retire()

    def _retire(self) -> None:
        memory = self._rundir.memory
        for old in surplus(self.kept, self._config):
            if old.path == self._held:
                continue
            if memory is not None and not old.path.is_relative_to(memory.root):
                continue  # what is on disk is all that outlives this process
            self.kept.remove(old)
            self._retired.add(old.manifest.seq)
            why = why_retired(old, self._config)
            self._rundir.note(RetiredEntry(path=old.path.name, seq=old.manifest.seq, why=why))
            self._jobs.put(functools.partial(self._discard, old.path))

    def hold(self, given: SavedCheckpoint | None) -> None:
        """This is what the ranks of an attempt begin with: it stays, until :meth:`release`, whatever else is kept."""
        self._held = given.path if given is not None else None

    def release(self) -> None:
        """Every rank has read what it began with."""
        if self._held is not None:
            self._held = None
            self._retire()

    def withdraw(self, seq: int) -> bool:
        """Take the checkpoint of this round away, whether it is there already or still to come; False if neither."""
        if seq not in self._asked or seq in self._withdrawn | self._retired:
            return False
        self._withdrawn.add(seq)
        self.kept = [saved for saved in self.kept if saved.manifest.seq != seq]
        self._jobs.put(functools.partial(self._withdraw, seq))
        return True

    def retired(self, seq: int) -> bool:
        """Whether this round's checkpoint had to make room for better ones."""
        return seq in self._retired

    def drop(self, attempt: int, closing: ReportRound) -> None:
        """The files of this round will not become a checkpoint, nor will any that come late."""
        self._withdrawn.add(closing.seq)
        allotted = self._allotted.get(closing.seq)
        folder = allotted.name if allotted is not None else None
        for rank in closing.givers:
            self._jobs.put(functools.partial(self._vault.clear, attempt, closing.seq, rank, folder))

    def end_attempt(self, attempt: int, *, last: bool = False) -> None:
        """Every worker has left, and storage has answered: what still lies in staging is of no use.

        ``last``: but for files that are all there and could not be committed, on a full disk, say. Nobody will save
        them again, and the next opening of the run commits them.
        """
        names = {seq: each.name for seq, each in self._allotted.items() if each.name is not None}
        kept = {saved.path.name for saved in self.kept}
        self._jobs.put(functools.partial(self._sweep, attempt, names, kept, frozenset(self._withdrawn), last=last))

    # --- the committer's thread ---

    def _commit(self, attempt: int, closing: ReportRound, number: int, name: str | None) -> SavedCheckpoint:
        """Metrics may be megabytes of text: they are read here, and not in the controller's thread."""
        what = CommitRequest(
            number=number,
            seq=closing.seq,
            attempt=attempt,
            world_size=len(closing.reports),
            ranks=closing.givers,
            metrics=metrics_of(closing),
            name=name,
            cursors=merged([report.cursor for report in closing.reports if report is not None]),
        )
        try:
            return self._vault.commit(what)
        except Exception:
            self._uncommitted.add(closing.seq)
            raise

    def _sweep(
        self, attempt: int, names: Mapping[int, str], kept: Set[str], withdrawn: Set[int], *, last: bool
    ) -> None:
        keep = self._uncommitted - withdrawn if last else frozenset()
        unfinished = {name for seq, name in names.items() if seq not in keep}
        self._vault.sweep(attempt, unfinished - kept, keep)

    def _extend(self, attempt: int, seq: int, rank: int) -> SavedCheckpoint:
        return self._vault.extend(self._paths[seq], attempt, seq, rank)

    def _withdraw(self, seq: int) -> None:
        if (path := self._paths.pop(seq, None)) is not None:
            self._vault.discard(path)

    def _discard(self, path: PurePath) -> None:
        """Take a checkpoint away; one that is being read later, when its readers have gone."""
        self._unwanted[path] = ""
        for each in [*self._unwanted]:
            if self._discarded(each):
                del self._unwanted[each]

    def _discarded(self, path: PurePath) -> bool:
        """One that cannot be removed does not keep the others from it."""
        try:
            if self._vault.is_read(path):
                return False
            self._vault.discard(path)
        except Exception as error:
            if str(error) != self._unwanted[path]:
                self._unwanted[path] = str(error)
                self._post(_not_removed(error))
            return False
        return True

    def _finish(self, attempt: int, rank: int, seq: int) -> None:
        try:
            arrived = self._vault.finish(attempt, seq, rank)
        except Exception as error:  # the files are still where they were; without them the round is not whole
            self._post(
                WarningEvent(f"the files of rank {rank} for report {seq} could not be brought to storage: {error}")
            )
            arrived = False
        self._post(SaveFinishedEvent(attempt, rank, seq, arrived))

    def _note_validation(self, path: PurePath, validation: ValidationRecord) -> None:
        try:
            self._vault.note_validation(path, validation)
        except (OSError, StorageError) as error:
            self._post(WarningEvent(f"the validation of {path.name} could not be written down: {error}"))

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            os.nice(NICE)  # of this thread alone: training goes first
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:  # tidying up must not stop what comes after it
                self._post(_not_removed(error))

    def _answer(self, attempt: int, seq: int, save: Callable[[], SavedCheckpoint]) -> None:
        try:
            saved = save()
        except Exception as error:  # whatever storage does to us, the run must hear of it
            reason = f"the checkpoint of report {seq} could not be committed: {error}"
            self._post(CommitFailedEvent(attempt, seq, reason, lost=isinstance(error, LeaseLost)))
        else:
            self._paths[seq] = saved.path
            self._post(CommitDoneEvent(attempt, seq, saved))


def _not_removed(error: Exception) -> WarningEvent:
    return WarningEvent(f"old checkpoint files could not be removed: {error}")


def _refused(claim: UploadRequest, why: str) -> UploadGrant:
    return UploadGrant(index=claim.index, folder="", files=(), refusal=why)


def metrics_of(closing: ReportRound) -> dict[str, Any]:
    """What a round says of itself: rank 0's metrics, else those of the lowest rank that reported."""
    report = next(report for report in closing.reports if report is not None)
    metrics: dict[str, Any] = json.loads(report.metrics)
    return metrics
