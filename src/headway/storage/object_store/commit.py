"""The commit of a checkpoint in an object store: the manifest, written after all files, is the commit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath

from headway.core.checkpoints import Manifest, SavedCheckpoint, StoredFile, ValidationRecord
from headway.core.errors import StorageError
from headway.storage.checkpoint.commit import CommitRequest, Signer, check_adopted_files, check_nothing_lacks
from headway.storage.checkpoint.manifest import manifest_bytes, parse_manifest, versions
from headway.storage.checkpoint.merge import check_kinds
from headway.storage.checkpoint.staging import Note
from headway.storage.checkpoint.validation_record import pending_record, validation_bytes
from headway.storage.object_store import recovery
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.upload import begun_key, differing, folder_key, get_note, note_key
from headway.storage.object_store.verify import checksums, damage
from headway.storage.run import layout


@dataclass(frozen=True)
class StoreCommit:
    """Commits checkpoints of one run. ``fence`` raises LeaseLost if another driver has taken it over."""

    store: ObjectStore
    fence: Callable[[], None]
    signer: Signer | None

    @contextlib.contextmanager
    def _as_owner(self) -> Iterator[None]:
        """Turn errors into LeaseLost if another driver has taken over the run, and may have swept files."""
        try:
            yield
        except (OSError, StorageError):
            self.fence()
            raise

    def commit(self, what: CommitRequest) -> SavedCheckpoint:
        """Make a checkpoint of files that ranks have uploaded. If it raises, no checkpoint exists."""
        with self._as_owner():
            return self._commit(what)

    def _commit(self, what: CommitRequest) -> SavedCheckpoint:
        notes = [(rank, get_note(self.store, what.attempt, what.seq, rank)) for rank in what.ranks]
        check_nothing_lacks(dict(notes))
        given = {name: stored for _, note in notes for name, stored in note.files.items()}
        files = {name: stored for name, stored in given.items() if name not in layout.BESIDE}  # metadata may change
        first = notes[0][1]
        if first.adopted:
            files = self._adopted(first.adopted)
        manifest = what.manifest(first, dict(sorted(files.items())))
        if first.adopted:
            check_adopted_files(manifest, (note for _, note in notes))
        if self.signer is not None:
            manifest = self.signer.sign(manifest, dict(notes))
        request = next((note.validation for _, note in notes if note.validation is not None), None)
        return self._written(manifest, notes, pending_record(request) if request is not None else None)

    def _written(
        self, manifest: Manifest, notes: list[tuple[int, Note]], validation: ValidationRecord | None
    ) -> SavedCheckpoint:
        """Write the manifest, which is the commit, and remove the ranks' notes."""
        folder = self.store.at(folder_key(manifest.name))
        self._check_files(folder, manifest, notes)
        self.fence()
        if validation is not None:
            folder.put(layout.VALIDATION, validation_bytes(validation))
        folder.put(layout.MANIFEST, manifest_bytes(manifest))
        with contextlib.suppress(StorageError):  # the checkpoint is committed; a later sweep removes the notes
            ranks = [rank for rank, _ in notes]
            self.store.delete(
                [key(manifest.attempt, manifest.seq, rank) for key in (note_key, begun_key) for rank in ranks]
            )
        conflicts = tuple(differing(notes))
        seconds = max(note.seconds for _, note in notes)
        return replace(recovery.saved(self.store, manifest, validation), conflicts=conflicts, seconds=seconds)

    def _check_files(self, folder: ObjectStore, manifest: Manifest, notes: list[tuple[int, Note]]) -> None:
        """StorageError unless every file that a note names exists, whichever rank had to upload it."""
        check_kinds({rank: (*note.files, *note.left) for rank, note in notes})
        wrong = list(damage(folder, manifest, folder.sizes(), contents=False))
        wrong += [
            f"{name} of rank {rank} is missing: another rank had to upload it and did not"
            for rank, note in notes
            for name in note.left
            if name not in (*manifest.files, *layout.BESIDE)
        ]
        if wrong:
            raise StorageError(f"{folder.url} is incomplete: {'; '.join(wrong)}")

    def _adopted(self, name: str) -> dict[str, StoredFile]:
        """Files that the user has uploaded. They are read, because they have no checksums yet."""
        folder = self.store.at(folder_key(name))
        return checksums(folder, {file: size for file, size in folder.sizes().items() if file not in layout.BESIDE})

    def extend(self, path: PurePath, attempt: int, seq: int, rank: int) -> SavedCheckpoint:
        """Add the files of a rank: a larger manifest replaces the present one, whose files do not change."""
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
        request = pending_record(note.validation) if note.validation is not None else None
        validation = recovery.validation_of(folder) or request
        return self._written(larger, [(manifest.ranks[0], known), (rank, note)], validation)
