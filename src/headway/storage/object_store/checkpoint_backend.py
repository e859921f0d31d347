"""The checkpoint backend in an object store.

Files are uploaded to their final keys; a manifest beside them, written last, makes them a checkpoint. There are no
renames: an incomplete checkpoint is a directory without a manifest, which no reader takes for a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from headway.core.checkpoints import Manifest, SavedCheckpoint, ValidationRecord
from headway.core.errors import StorageError
from headway.storage.checkpoint import handoff_records
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.commit import CommitRequest, Signer
from headway.storage.checkpoint.handoff_records import Handoff
from headway.storage.checkpoint.manifest import parse_manifest
from headway.storage.checkpoint.recovery import (
    Recovered,
    Survey,
    finish_or_undo,
    open_handoffs,
    restore_reports,
    settle_handoffs,
)
from headway.storage.checkpoint.validation_record import validation_bytes
from headway.storage.object_store import download_cache, recovery
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.commit import StoreCommit
from headway.storage.object_store.upload import RankUpload, begun_key, folder_key, note_key, send
from headway.storage.object_store.verify import SET_ASIDE, damage
from headway.storage.run import layout

SERIES = 1000  # a new owner continues with a multiple of this number


@dataclass(frozen=True)
class ObjectStoreCheckpointBackend:
    """Checkpoints in an object store. ``store`` is rooted at the run."""

    store: ObjectStore
    check_lease: Callable[[], None] | None = field(default=None, compare=False)
    contested: bool = False  # whether the former owner may still be running
    signer: Signer | None = None  # None: read-only
    home: Path | None = None  # local directory of the run, with the hand-offs of its workers

    def read_only(self) -> ObjectStoreCheckpointBackend:
        return ObjectStoreCheckpointBackend(self.store)

    def fence(self) -> None:
        """LeaseLost if another driver has taken over the run."""
        if self.check_lease is not None:
            self.check_lease()

    @property
    def url(self) -> str:
        return self.store.url

    def commit(self, what: CommitRequest) -> SavedCheckpoint:
        saved = StoreCommit(self.store, self.fence, self.signer).commit(what)
        self._end_handoffs(saved)
        return saved

    def extend(self, path: PurePath, attempt: int, seq: int, rank: int) -> SavedCheckpoint:
        saved = StoreCommit(self.store, self.fence, self.signer).extend(path, attempt, seq, rank)
        self._end_handoffs(saved)
        return saved

    def _end_handoffs(self, saved: SavedCheckpoint) -> None:
        if self.home is not None:
            open_handoffs(self.home, self._handoffs(saved.manifest.attempt), [saved])

    def discard(self, path: PurePath) -> None:
        """Delete a checkpoint, its manifest first, so that readers never see a part of it."""
        self.fence()
        folder = self.store.at(folder_key(path.name))
        folder.delete([layout.MANIFEST])
        folder.delete(folder.sizes())

    def checkpoint(self, path: PurePath) -> Checkpoint:
        return Checkpoint.of(self.store.at(folder_key(path.name)))

    def note_validation(self, path: PurePath, validation: ValidationRecord) -> None:
        self.fence()
        folder = self.store.at(folder_key(path.name))
        if layout.MANIFEST in folder.sizes():
            folder.put(layout.VALIDATION, validation_bytes(validation))

    def is_read(self, path: PurePath) -> bool:
        """Whether a process of this machine reads it now; readers on other machines are unknown."""
        return download_cache.is_held(self.store.at(folder_key(path.name)))

    def finish(self, attempt: int, seq: int, rank: int) -> bool:
        self.fence()
        for handoff in self._handoffs(attempt):
            if (handoff.seq, handoff.rank) == (seq, rank):
                return self._finish(handoff)
        return self._is_uploaded(attempt, seq, rank)

    def _is_uploaded(self, attempt: int, seq: int, rank: int) -> bool:
        return note_key(attempt, seq, rank) in self.store.sizes(folder_key(layout.STAGING))

    def _finish(self, handoff: Handoff) -> bool:
        assert self.signer is not None
        assert self.home is not None
        if not self._is_uploaded(handoff.attempt, handoff.seq, handoff.rank):
            if not handoff_records.is_available(handoff):
                return False
            send(RankUpload.of(self.store, handoff, self.signer.key), handoff.note)
        if handoff.scratch:
            handoff_records.end(self.home, handoff)
        return True

    def _handoffs(self, attempt: int | None = None) -> Iterator[Handoff]:
        if self.signer is None or self.home is None:
            return iter(())
        return handoff_records.pending(self.home, self.signer.key, attempt)

    def clear(self, attempt: int, seq: int, rank: int, folder: str | None) -> None:
        """Delete files that will not become a checkpoint."""
        self.fence()
        self._give_back([handoff for handoff in self._handoffs(attempt) if (handoff.seq, handoff.rank) == (seq, rank)])
        self.store.delete([note_key(attempt, seq, rank), begun_key(attempt, seq, rank)])
        if folder is not None and layout.MANIFEST not in (found := self.store.at(folder_key(folder)).sizes()):
            self.store.at(folder_key(folder)).delete(found)

    def sweep(self, attempt: int, names: Collection[str], keep: Collection[int] = ()) -> None:
        self.fence()
        self._give_back([handoff for handoff in self._handoffs(attempt) if handoff.seq not in keep])
        recovery.sweep(self.store, attempt, names, keep)

    def _give_back(self, handoffs: Iterable[Handoff]) -> None:
        for handoff in handoffs:
            assert self.home is not None
            handoff_records.log_given_back(self.home, handoff)

    def survey(self) -> Survey:
        return recovery.survey(self.store)

    def folders(self) -> list[str]:
        """Names of checkpoints that are or were complete. Directories without a manifest are unfinished saves."""
        folders = recovery.listing(self.store).folders
        return sorted(name for name, files in folders.items() if {layout.MANIFEST, SET_ASIDE} & set(files))

    def verify(self, name: str) -> tuple[Manifest, list[str]]:
        folder = self.store.at(folder_key(name))
        try:
            data = folder.read(layout.MANIFEST)
        except FileNotFoundError:
            raise StorageError(f"it was found damaged before; its manifest was renamed to {SET_ASIDE}") from None
        manifest = parse_manifest(f"{folder.url}/{layout.MANIFEST}", data)
        return manifest, list(damage(folder, manifest, folder.sizes(), contents=True))

    def recover(self, *, crashed: bool) -> Recovered:
        home = self.home
        if home is None:
            return recovery.recover(self, crashed=crashed)
        begun = [note for handoff in self._open_handoffs(home) for note in finish_or_undo(home, handoff, self._finish)]
        recovered = recovery.recover(self, crashed=crashed)
        ended = settle_handoffs(home, self._handoffs(), recovered.kept)
        return replace(recovered, notes=[*begun, *recovered.notes, *restore_reports(home, recovered.kept), *ended])

    def _open_handoffs(self, home: Path) -> list[Handoff]:
        """The hand-offs whose files are not in a checkpoint yet, which are few: usually no checkpoint is read."""
        pending = [*self._handoffs()]
        return open_handoffs(home, pending, self.survey().kept) if pending else []

    def next_number(self) -> int:
        """The next number; far above the former owner's if that may still be uploading."""
        number = recovery.next_number(self.store)
        return -(-(number + SERIES // 2) // SERIES) * SERIES if self.contested else number
