"""The checkpoint backend in an object store.

Files are uploaded to their final keys, and the manifest, written last, makes them a checkpoint. There are no renames,
so an incomplete checkpoint is a directory without a manifest, which is never mistaken for a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from headway.core.checkpoints import Manifest, SavedCheckpoint, ValidationRecord
from headway.core.errors import StorageError
from headway.storage.checkpoint import background_handoff
from headway.storage.checkpoint.background_handoff import Handoff
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.commit import CommitRequest, Signer
from headway.storage.checkpoint.manifest import parse_manifest
from headway.storage.checkpoint.recovery import Recovered, Survey, finish_or_undo, restore_reports
from headway.storage.checkpoint.validation_record import validation_bytes
from headway.storage.object_store import download_cache, recovery
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.commit import StoreCommit
from headway.storage.object_store.upload import RankUpload, begun_key, folder_key, note_key, send
from headway.storage.object_store.verify import SET_ASIDE, damage
from headway.storage.run import layout

SERIES = 1000  # after a takeover, checkpoint numbers continue at the next multiple


@dataclass(frozen=True)
class ObjectStoreCheckpointBackend:
    """Checkpoints in an object store; ``store`` is rooted at the run."""

    store: ObjectStore
    check_lease: Callable[[], None] | None = field(default=None, compare=False)
    contested: bool = False  # whether a former owner may not know yet that it lost the run
    signer: Signer | None = None  # None for readers, which commit nothing
    home: Path | None = None  # directory on the driver's machine where its workers record their hand-offs

    def read_only(self) -> ObjectStoreCheckpointBackend:
        return ObjectStoreCheckpointBackend(self.store)

    def fence(self) -> None:
        """Raise LeaseLost if another driver has taken over the run."""
        if self.check_lease is not None:
            self.check_lease()

    @property
    def url(self) -> str:
        return self.store.url

    def commit(self, what: CommitRequest) -> SavedCheckpoint:
        return StoreCommit(self.store, self.fence, self.signer).commit(what)

    def extend(self, path: PurePath, attempt: int, seq: int, rank: int) -> SavedCheckpoint:
        return StoreCommit(self.store, self.fence, self.signer).extend(path, attempt, seq, rank)

    def discard(self, path: PurePath) -> None:
        """Remove a checkpoint, its manifest first, so that a partly removed checkpoint is never visible."""
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
        """Whether a process on this machine is reading it. Readers on other machines cannot be detected."""
        return download_cache.is_held(self.store.at(folder_key(path.name)))

    def finish(self, attempt: int, seq: int, rank: int) -> bool:
        self.fence()
        for left in self._handoffs(attempt):
            if (left.seq, left.rank) == (seq, rank):
                return self._finish(left)
        return note_key(attempt, seq, rank) in self.store.sizes(folder_key(layout.STAGING))

    def _finish(self, left: Handoff) -> bool:
        assert self.signer is not None
        assert self.home is not None
        if not background_handoff.is_available(left):
            return False
        send(RankUpload.of(self.store, left, self.signer.key), left.note)
        background_handoff.end(self.home, left)
        return True

    def _handoffs(self, attempt: int | None = None) -> Iterator[Handoff]:
        if self.signer is None or self.home is None:
            return iter(())
        return background_handoff.pending(self.home, self.signer.key, attempt)

    def clear(self, attempt: int, seq: int, rank: int, folder: str | None) -> None:
        """Remove a rank's files that will not become a checkpoint."""
        self.fence()
        self.store.delete([note_key(attempt, seq, rank), begun_key(attempt, seq, rank)])
        if folder is not None and layout.MANIFEST not in (found := self.store.at(folder_key(folder)).sizes()):
            self.store.at(folder_key(folder)).delete(found)

    def sweep(self, attempt: int, names: Collection[str], keep: Collection[int] = ()) -> None:
        self.fence()
        for left in self._handoffs(attempt):
            assert self.home is not None
            background_handoff.undo(self.home, left)
        recovery.sweep(self.store, attempt, names, keep)

    def survey(self) -> Survey:
        return recovery.survey(self.store)

    def folders(self) -> list[str]:
        """Names of checkpoints that are or were complete. Files without a manifest are unfinished or left over."""
        folders = recovery.listing(self.store).folders
        return sorted(name for name, files in folders.items() if {layout.MANIFEST, SET_ASIDE} & set(files))

    def verify(self, name: str) -> tuple[Manifest, list[str]]:
        folder = self.store.at(folder_key(name))
        try:
            data = folder.read(layout.MANIFEST)
        except FileNotFoundError:
            raise StorageError(f"it was found damaged before, and its manifest is called {SET_ASIDE}") from None
        manifest = parse_manifest(f"{folder.url}/{layout.MANIFEST}", data)
        return manifest, list(damage(folder, manifest, folder.sizes(), contents=True))

    def recover(self, *, crashed: bool) -> Recovered:
        home = self.home
        if home is None:
            return recovery.recover(self, crashed=crashed)
        begun = [note for left in self._handoffs() for note in finish_or_undo(home, left, self._finish)]
        recovered = recovery.recover(self, crashed=crashed)
        return replace(recovered, notes=[*begun, *recovered.notes, *restore_reports(home, recovered.kept)])

    def next_number(self) -> int:
        """The next checkpoint number; after a takeover, far above the numbers that the former owner may still use."""
        number = recovery.next_number(self.store)
        return -(-(number + SERIES // 2) // SERIES) * SERIES if self.contested else number
