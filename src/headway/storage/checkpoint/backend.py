"""The protocol of checkpoint backends (commit, extend, discard, recover), and the backend in a directory."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Protocol

from headway.core.checkpoints import Manifest, SavedCheckpoint, ValidationRecord
from headway.core.security.signing import Key
from headway.storage import durable_fs
from headway.storage.checkpoint import handoff_records, staging
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.commit import CommitRequest, Signer, commit, discard, extend
from headway.storage.checkpoint.manifest import damage, read_manifest
from headway.storage.checkpoint.recovery import Recovered, Survey, next_number, recover, survey
from headway.storage.checkpoint.staging import Slot
from headway.storage.checkpoint.staging import read_note as read_note
from headway.storage.checkpoint.validation_record import write_validation
from headway.storage.fs_ops import entries
from headway.storage.run import layout


class CheckpointBackend(Protocol):
    """The checkpoints of one run. Only the controller's committer calls methods that change anything."""

    @property
    def url(self) -> str:
        """The URI or path of the run, for messages."""

    def read_only(self) -> CheckpointBackend:
        """The same backend for readers: without key and lock, so that it can be pickled."""

    def fence(self) -> None:
        """StorageError if another driver has taken over the run: then nothing may be written."""

    def commit(self, what: CommitRequest) -> SavedCheckpoint:
        """Make a checkpoint of staged files. If it raises, no checkpoint exists."""

    def extend(self, path: PurePath, attempt: int, seq: int, rank: int) -> SavedCheckpoint:
        """Add a rank's files to a checkpoint."""

    def discard(self, path: PurePath) -> None:
        """Remove a checkpoint atomically, as seen by readers."""

    def note_validation(self, path: PurePath, validation: ValidationRecord) -> None:
        """Store a validation record beside a checkpoint, if the checkpoint still exists."""

    def checkpoint(self, path: PurePath) -> Checkpoint:
        """The committed checkpoint at this path, as users handle it."""

    def is_read(self, path: PurePath) -> bool:
        """Whether a process is reading it."""

    def finish(self, attempt: int, seq: int, rank: int) -> bool:
        """Complete the save of a worker that died during an upload; False if its files no longer exist."""

    def clear(self, attempt: int, seq: int, rank: int, folder: str | None) -> None:
        """Remove files of a rank that will not become a checkpoint. Moved ones are given back, and a line says where.

        Args:
            attempt: Number of the attempt.
            seq: Number of the report.
            rank: The rank.
            folder: Name of the checkpoint directory reserved for the files, if any.
        """

    def sweep(self, attempt: int, names: Collection[str], keep: Collection[int] = ()) -> None:
        """Remove uncommitted files of an attempt. Moved ones are given back, and a line says where.

        Args:
            attempt: Number of the attempt, which has ended.
            names: Names of checkpoints reserved for it.
            keep: Numbers of reports whose files stay for the next opening.
        """

    def survey(self) -> Survey:
        """List the checkpoints without changing anything."""

    def folders(self) -> list[str]:
        """Names of all directories that are or were checkpoints, also without a manifest."""

    def verify(self, name: str) -> tuple[Manifest, list[str]]:
        """Read every byte of a checkpoint. Its manifest, and the differences from it."""

    def recover(self, *, crashed: bool) -> Recovered:
        """Restore a consistent state after a crash. The run's lock must be held."""

    def next_number(self) -> int:
        """A number above those of all checkpoints, also damaged ones."""


@dataclass(frozen=True)
class LocalCheckpointBackend:
    """Checkpoints in a directory. ``root`` is the run's directory, or a similar one in shared memory."""

    root: Path
    signer: Signer | None = None  # None: read-only
    check_lock: Callable[[], None] | None = field(default=None, compare=False)

    @property
    def url(self) -> str:
        return str(self.root)

    def read_only(self) -> LocalCheckpointBackend:
        return LocalCheckpointBackend(self.root)

    def fence(self) -> None:
        """LeaseLost if the directory now belongs to another run."""
        if self.check_lock is not None:
            self.check_lock()

    def commit(self, what: CommitRequest) -> SavedCheckpoint:
        self.fence()
        return commit(self.root, what, self.signer)

    def extend(self, path: PurePath, attempt: int, seq: int, rank: int) -> SavedCheckpoint:
        self.fence()
        return extend(Path(path), Slot(self.root, attempt, seq, rank), self.signer)

    def discard(self, path: PurePath) -> None:
        self.fence()
        discard(Path(path))

    def note_validation(self, path: PurePath, validation: ValidationRecord) -> None:
        self.fence()
        if Path(path).is_dir() and not Path(path).is_symlink():  # nothing is written through a link
            write_validation(Path(path), validation)

    def checkpoint(self, path: PurePath) -> Checkpoint:
        return Checkpoint.of(str(path))

    def is_read(self, path: PurePath) -> bool:
        return durable_fs.is_read(Path(path))

    def finish(self, attempt: int, seq: int, rank: int) -> bool:
        self.fence()
        key = self._key
        handoffs = {(each.seq, each.rank): each for each in handoff_records.pending(self.root, key, attempt)}
        if (handoff := handoffs.get((seq, rank))) is not None:
            return handoff_records.finish(self.root, handoff, key)
        return Slot(self.root, attempt, seq, rank).folder.is_dir()  # complete, but the worker died before it said so

    def clear(self, attempt: int, seq: int, rank: int, folder: str | None) -> None:
        self.fence()
        slot = Slot(self.root, attempt, seq, rank)
        for handoff in handoff_records.pending(self.root, self._key, attempt):
            if handoff.slot(self.root) == slot:
                handoff_records.log_given_back(self.root, handoff)
        slot.clear()

    def sweep(self, attempt: int, names: Collection[str], keep: Collection[int] = ()) -> None:
        self.fence()
        for handoff in handoff_records.pending(self.root, self._key, attempt):
            if handoff.seq not in keep:
                handoff_records.log_given_back(self.root, handoff)
        staging.sweep(self.root, attempt, keep)

    @property
    def _key(self) -> Key:
        assert self.signer is not None, "only a run that is open is written to"
        return self.signer.key

    def survey(self) -> Survey:
        return survey(self.root)

    def folders(self) -> list[str]:
        found = entries(self.root / layout.CHECKPOINTS)
        return [path.name for path in found if path.is_dir() and not path.name.startswith(".")]

    def verify(self, name: str) -> tuple[Manifest, list[str]]:
        folder = self.root / layout.CHECKPOINTS / name
        manifest = read_manifest(folder)
        return manifest, list(damage(folder, manifest, contents=True))

    def recover(self, *, crashed: bool) -> Recovered:
        return recover(self.root, crashed=crashed, signer=self.signer)

    def next_number(self) -> int:
        return next_number(self.root)
