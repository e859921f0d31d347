"""The commit of a checkpoint from staged files: merge the ranks, flush, write the manifest, rename.

    files flushed and checksummed  →  manifest written and flushed  →  directory renamed  →  parent flushed

The rename is the commit. A crash before it leaves a directory in staging. With a manifest it is complete, and recovery
renames it. Without one, recovery commits the ranks' staged files again, or sweeps them.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.core.checkpoints import Manifest, SavedCheckpoint, StoredFile, checkpoint_name
from headway.core.errors import StorageError
from headway.core.schema.data_cursor import DataCursor, DatasetCursor
from headway.core.security.signing import Key
from headway.storage import durable_fs
from headway.storage.checkpoint.manifest import flush_files, read_manifest, versions, write_manifest
from headway.storage.checkpoint.merge import Given, merge
from headway.storage.checkpoint.required_files import vanished
from headway.storage.checkpoint.signatures import is_pickle
from headway.storage.checkpoint.staging import Note, Slot, read_note
from headway.storage.checkpoint.validation_record import carry_over, write_request
from headway.storage.fs_ops import remove_json, replace_links
from headway.storage.run import layout


@dataclass(frozen=True, kw_only=True)
class CommitRequest:
    """A request to commit the staged files of one report."""

    number: int
    seq: int
    attempt: int
    world_size: int
    ranks: tuple[int, ...]
    metrics: dict[str, Any]
    name: str | None = None  # None: the name in its first rank's note, else one with its number
    cursors: dict[str, DatasetCursor] = field(default_factory=dict)  # position of the ranks in each dataset

    @property
    def folder(self) -> str:
        """The directory name of the checkpoint."""
        return self.name or checkpoint_name(self.number)

    def manifest(self, note: Note | None, files: dict[str, StoredFile]) -> Manifest:
        """The manifest of the checkpoint; ``note`` is that of its first rank."""
        return Manifest(
            number=self.number,
            name=self.folder,
            seq=self.seq,
            attempt=self.attempt,
            world_size=self.world_size,
            ranks=list(self.ranks),
            metrics=self.metrics,
            values=note.values if note is not None else {},
            cursor=self._cursor(note),
            files=files,
            time=time.time(),
            versions=versions(),
        )

    def _cursor(self, note: Note | None) -> DataCursor:
        """The data position. Reported positions take precedence over those in a note."""
        noted = note.cursor if note is not None else DataCursor()
        datasets: dict[str, object] = {name: cursor.to_json() for name, cursor in self.cursors.items()}
        return replace(noted, datasets=datasets) if datasets else noted

    def path(self, run: Path) -> Path:
        """The path of the checkpoint in a run's directory."""
        return run / layout.CHECKPOINTS / self.folder


@dataclass(frozen=True)
class Signer:
    """Signs manifests of a run, if its own workers have saved all files, and no pickle has changed since."""

    run: str
    key: Key

    def sign(self, manifest: Manifest, notes: Mapping[int, Note | None], known: Manifest | None = None) -> Manifest:
        """The manifest, signed if its origin is proven.

        Args:
            manifest: The manifest.
            notes: The notes of the ranks that saved its files, which workers of the run must have signed.
            known: A signed manifest of other files in it.
        """
        place = manifest.attempt, manifest.seq
        proven = {(name, stored.sha256) for name, stored in known.files.items()} if known is not None else set()
        for rank, note in notes.items():
            if note is None or not note.is_signed(self.key, *place, rank):
                return manifest
            proven |= note.pickles.items()
        pickles = {name: stored.sha256 for name, stored in manifest.files.items() if is_pickle(name)}
        return manifest.signed(self.run, self.key) if pickles.items() <= proven else manifest

    def extend(self, known: Manifest, larger: Manifest, late: int, note: Note | None) -> Manifest:
        """The manifest of an extended checkpoint, signed if the known manifest and the late note are."""
        unsigned = replace(larger, signature="")
        return self.sign(unsigned, {late: note}, known) if known.is_signed(self.key) else unsigned


def commit(run: Path, what: CommitRequest, signer: Signer | None = None) -> SavedCheckpoint:
    """Make a checkpoint of the ranks' staged files. If it raises, no checkpoint exists."""
    slots = [Slot(run, what.attempt, what.seq, rank) for rank in what.ranks]
    notes = {slot.rank: read_note(slot) for slot in slots}
    note = notes[slots[0].rank]
    _check_slots(slots)
    check_nothing_lacks(notes)
    if what.name is None and note is not None:
        what = replace(what, name=note.adopted or note.name)
    if what.name is None and os.path.lexists(what.path(run)):  # a user has chosen this name
        what = replace(what, number=layout.next_number(path.stem for path in what.path(run).parent.iterdir()))
    final = what.path(run)
    whole = final if note is not None and note.adopted else slots[0].folder
    if whole.is_symlink():
        raise StorageError(f"{whole} is a link, and Headway writes only inside a run's directory: remove it")
    if whole != final:
        _check_free(final)  # before anything is merged
    remove_json(whole / layout.MANIFEST)  # of an interrupted commit
    if whole == final:
        replace_links(whole)  # staged copies have none
    clashes = () if whole == final else tuple(merge([Given.by(slot) for slot in slots]))
    validation = write_request(whole, _validation_request(slots))
    manifest = what.manifest(note, flush_files(whole))
    if whole == final:
        check_adopted_files(manifest, notes.values())
    if signer is not None:
        manifest = signer.sign(manifest, notes)
    write_manifest(whole, manifest)
    publish(whole, final)
    for slot in slots:
        slot.on_committed()
    return SavedCheckpoint(final, manifest, clashes, validation=validation)


def check_nothing_lacks(notes: Mapping[int, Note | None]) -> None:
    """StorageError if a file of a rank disappeared during its save, unless another rank reported the same directory."""
    origins = Counter(note.origin for note in notes.values() if note is not None)
    for note in notes.values():
        if note is not None and note.lacking and origins[note.origin] < 2:
            raise StorageError(vanished(Path(note.source, note.lacking[0])))


def check_adopted_files(manifest: Manifest, notes: Iterable[Note | None]) -> None:
    """StorageError if a file has vanished or changed since the directory was reported."""
    for name, stored in ((name, stored) for note in notes if note is not None for name, stored in note.files.items()):
        current = manifest.files.get(name)
        if current is None:
            raise StorageError(
                f"{name} disappeared from {manifest.name} after it was reported and before it was committed"
            )
        if current.size != stored.size and manifest.world_size == 1:  # else another rank may have written it
            raise StorageError(
                f"{name} in {manifest.name} changed after it was reported and before it was committed: it had "
                f"{stored.size:,} bytes and has {current.size:,}"
            )


def _validation_request(slots: Sequence[Slot]) -> dict[str, Any] | None:
    """The validation request of the lowest rank that has one."""
    requests = (note.validation for slot in slots if (note := read_note(slot)) is not None)
    return next((request for request in requests if request is not None), None)


def _check_slots(slots: Sequence[Slot]) -> None:
    for slot in slots:
        if not slot.folder.is_dir() or slot.folder.is_symlink():
            raise StorageError(f"the files of rank {slot.rank} for report {slot.seq} are missing: {slot.folder}")
    names = {slot.rank: note.adopted or note.name for slot in slots if (note := read_note(slot)) is not None}
    if len(set(names.values())) > 1:
        raise StorageError(f"the ranks gave this checkpoint different names: {names}")


def _check_free(final: Path) -> None:
    if os.path.lexists(final):
        raise StorageError(f"a directory {final.name} already exists: give each checkpoint its own name")


def publish(whole: Path, final: Path) -> None:
    """Rename a directory with a manifest to its final path, which makes it a checkpoint, and flush the parent.

    An adopted directory already has its final path.
    """
    if whole != final:
        _check_free(final)
        durable_fs.move(whole, final)
    durable_fs.flush(final.parent)


def extend(path: Path, late: Slot, signer: Signer | None = None) -> SavedCheckpoint:
    """Add a rank's files to a checkpoint: build the larger one in staging and swap the two atomically."""
    manifest = read_manifest(path)
    known = late.folder.with_name(f"{late.folder.name}.known")
    durable_fs.remove(known)  # of an interrupted extension
    beside = [layout.METADATA] if (path / layout.METADATA).is_file() else []  # safe to link: a change replaces the file
    for name in (*manifest.files, *beside):
        durable_fs.make_directory((known / name).parent)
        durable_fs.link(path / name, known / name)  # committed files never change
    order = sorted([Given(min(manifest.ranks), known, Note(0, {})), Given.by(late)], key=lambda given: given.rank)
    clashes = tuple(merge(order, _link_over))  # if this fails, the late files are still staged
    whole = order[0].folder
    remove_json(whole / layout.MANIFEST)  # of an interrupted call
    ranks = sorted([*manifest.ranks, late.rank])
    larger = replace(manifest, ranks=ranks, files=flush_files(whole), time=time.time(), versions=versions())
    validation = carry_over(path, whole, _validation_request([late]))
    if signer is not None:
        larger = signer.extend(manifest, larger, late.rank, read_note(late))
    write_manifest(whole, larger)
    durable_fs.exchange(whole, path)
    durable_fs.flush(path.parent)
    durable_fs.remove(known)
    late.on_committed()
    return SavedCheckpoint(path, larger, clashes, validation=validation)


def _link_over(source: Path, target: Path) -> None:
    durable_fs.remove(target)
    durable_fs.link(source, target)


def discard(path: Path) -> None:
    """Remove a checkpoint: rename it first, so that readers never see a part of it."""
    trash = path.parent / layout.STAGING / layout.with_ending(path.name, ".discarded")
    durable_fs.make_directory(trash.parent)
    if path.exists():
        durable_fs.move(path, trash)
    durable_fs.remove(trash)
