"""The checkpoints of a run in an object store.

Files go where they will stay from the start; a manifest among them, written last, makes them a checkpoint. There are no
renames, so a checkpoint that is not whole is a folder without a manifest, which nobody ever takes for one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from headway.core.checkpoints import Manifest, SavedCheckpoint, StoredFile, ValidationRecord
from headway.core.errors import StorageError
from headway.storage.checkpoint import background_handoff
from headway.storage.checkpoint.background_handoff import Handoff
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.commit import CommitRequest, Signer, check_adopted_files
from headway.storage.checkpoint.manifest import manifest_bytes, parse_manifest, versions
from headway.storage.checkpoint.recovery import Recovered, Survey, finish_or_undo, restore_reports
from headway.storage.checkpoint.staging import Note
from headway.storage.checkpoint.validation_record import validation_bytes, wanted
from headway.storage.object_store import download_cache, recovery
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.upload import Parcel, begun_key, differing, folder_key, get_note, note_key, send
from headway.storage.object_store.verify import SET_ASIDE, damage, summed
from headway.storage.run import layout

SERIES = 1000  # numbers that a new owner begins with are a multiple of it


@dataclass(frozen=True)
class ObjectStoreCheckpointBackend:
    """``store`` begins at the run."""

    store: ObjectStore
    check_lease: Callable[[], None] | None = field(default=None, compare=False)
    contested: bool = False  # whether a former owner may not know yet that it is one
    signer: Signer | None = None  # None: nothing will be committed here
    home: Path | None = None  # on the machine of the driver, where its workers leave what is to be uploaded

    def read_only(self) -> ObjectStoreCheckpointBackend:
        return ObjectStoreCheckpointBackend(self.store)

    def fence(self) -> None:
        """LeaseLost where the run is in other hands."""
        if self.check_lease is not None:
            self.check_lease()

    @contextlib.contextmanager
    def _as_owner(self) -> Iterator[None]:
        """LeaseLost for whatever fails because the run is in other hands: files that its new owner has swept, say."""
        try:
            yield
        except (OSError, StorageError):
            self.fence()
            raise

    @property
    def url(self) -> str:
        return self.store.url

    def commit(self, what: CommitRequest) -> SavedCheckpoint:
        with self._as_owner():
            return self._commit(what)

    def _commit(self, what: CommitRequest) -> SavedCheckpoint:
        notes = [(rank, get_note(self.store, what.attempt, what.seq, rank)) for rank in what.ranks]
        given = {name: stored for _, note in notes for name, stored in note.files.items()}
        files = {name: stored for name, stored in given.items() if name not in layout.BESIDE}  # which may change
        first = notes[0][1]
        if first.adopted:
            files = self._adopted(first.adopted)
        manifest = what.manifest(first, dict(sorted(files.items())))
        if first.adopted:
            check_adopted_files(manifest, (note for _, note in notes))
        if self.signer is not None:
            manifest = self.signer.sign(manifest, dict(notes))
        wish = next((note.validation for _, note in notes if note.validation is not None), None)
        return self._written(manifest, notes, wanted(wish) if wish is not None else None)

    def _written(
        self, manifest: Manifest, notes: list[tuple[int, Note]], validation: ValidationRecord | None
    ) -> SavedCheckpoint:
        """The one step that makes it a checkpoint; what was said on the way is of no use afterwards."""
        folder = self.store.at(folder_key(manifest.name))
        self._check_files(folder, manifest, notes)
        self.fence()
        if validation is not None:
            folder.put(layout.VALIDATION, validation_bytes(validation))
        folder.put(layout.MANIFEST, manifest_bytes(manifest))
        with contextlib.suppress(StorageError):  # it is committed all the same; a sweep will find them
            ranks = [rank for rank, _ in notes]
            self.store.delete(
                [key(manifest.attempt, manifest.seq, rank) for key in (note_key, begun_key) for rank in ranks]
            )
        conflicts = tuple(differing(notes))
        seconds = max(note.seconds for _, note in notes)
        return replace(recovery.saved(self.store, manifest, validation), conflicts=conflicts, seconds=seconds)

    def _check_files(self, folder: ObjectStore, manifest: Manifest, notes: list[tuple[int, Note]]) -> None:
        """What is promised must be there, whoever was to put it there."""
        wrong = list(damage(folder, manifest, folder.sizes(), contents=False))
        wrong += [
            f"{name} of rank {rank} is missing: another rank was to put it there, and did not"
            for rank, note in notes
            for name in note.left
            if name not in (*manifest.files, *layout.BESIDE)
        ]
        if wrong:
            raise StorageError(f"{folder.url} is not whole: {'; '.join(wrong)}")

    def _adopted(self, name: str) -> dict[str, StoredFile]:
        """Files that other hands have put there: we must read them to know what they hold."""
        folder = self.store.at(folder_key(name))
        return summed(folder, {file: size for file, size in folder.sizes().items() if file not in layout.BESIDE})

    def extend(self, path: PurePath, attempt: int, seq: int, rank: int) -> SavedCheckpoint:
        """A larger manifest takes the place of the smaller one; no file that this one names was touched."""
        with self._as_owner():
            return self._extend(path, attempt, seq, rank)

    def _extend(self, path: PurePath, attempt: int, seq: int, rank: int) -> SavedCheckpoint:
        folder = self.store.at(folder_key(path.name))
        manifest = parse_manifest(folder.url, folder.read(layout.MANIFEST))
        note = get_note(self.store, attempt, seq, rank)
        known = Note(manifest.world_size, {}, files=manifest.files)
        late = {name: stored for name, stored in note.files.items() if name not in layout.BESIDE}
        files = dict(sorted({**late, **manifest.files}.items()))
        ranks = sorted([*manifest.ranks, rank])
        larger = replace(manifest, ranks=ranks, files=files, time=time.time(), versions=versions())
        if self.signer is not None:
            larger = self.signer.extend(manifest, larger, rank, note)
        wish = wanted(note.validation) if note.validation is not None else None
        validation = recovery.validation_of(folder) or wish
        return self._written(larger, [(manifest.ranks[0], known), (rank, note)], validation)

    def discard(self, path: PurePath) -> None:
        """Its manifest first, so that it is never half there."""
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
        """Whether somebody on this machine reads it right now; of others we cannot know."""
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
        if not background_handoff.is_there(left):
            return False
        send(Parcel.of(self.store, left, self.signer.key), left.note)
        background_handoff.end(self.home, left)
        return True

    def _handoffs(self, attempt: int | None = None) -> Iterator[Handoff]:
        if self.signer is None or self.home is None:
            return iter(())
        return background_handoff.found(self.home, self.signer.key, attempt)

    def clear(self, attempt: int, seq: int, rank: int, folder: str | None) -> None:
        """Files that will not become a checkpoint."""
        self.fence()
        self.store.delete([note_key(attempt, seq, rank), begun_key(attempt, seq, rank)])
        if folder is not None and layout.MANIFEST not in (found := self.store.at(folder_key(folder)).sizes()):
            self.store.at(folder_key(folder)).delete(found)

    def sweep(self, attempt: int, names: Collection[str], keep: Collection[int] = ()) -> None:
        self.fence()
        self._undo(self._handoffs(attempt))
        recovery.sweep(self.store, attempt, names, keep)

    def _undo(self, handoffs: Iterable[Handoff]) -> None:
        for left in handoffs:
            assert self.home is not None
            background_handoff.undo(self.home, left)

    def survey(self) -> Survey:
        return recovery.survey(self.store)

    def folders(self) -> list[str]:
        """Of checkpoints that are or were whole; files without a manifest are on their way, or left over."""
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
        """Where the run was taken from somebody who may still be uploading, far from the numbers that it may use."""
        number = recovery.next_number(self.store)
        return -(-(number + SERIES // 2) // SERIES) * SERIES if self.contested else number
