"""Commit of staged files as a checkpoint: merge the ranks, flush, write the manifest, rename.

    files flushed and checksummed  →  manifest written and flushed  →  directory renamed  →  its name flushed

Only the rename makes it a checkpoint. A crash before the rename leaves a directory in staging. If it has a manifest, it
is complete, and recovery renames it. Otherwise recovery starts over from the ranks' staged files, or sweeps it.
"""

from __future__ import annotations

import os
import time
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
from headway.storage.checkpoint.staging import Note, Slot, read_note
from headway.storage.checkpoint.validation_record import carry_over, write_request
from headway.storage.fs_ops import remove_json, replace_links
from headway.storage.run import layout


@dataclass(frozen=True, kw_only=True)
class CommitRequest:
    """Everything that is needed to turn staged files into a checkpoint."""

    number: int
    seq: int
    attempt: int
    world_size: int
    ranks: tuple[int, ...]
    metrics: dict[str, Any]
    name: str | None = None  # None: the name requested by the first rank, otherwise derived from the number
    cursors: dict[str, DatasetCursor] = field(default_factory=dict)  # position of the ranks in each dataset

    @property
    def folder(self) -> str:
        """The checkpoint's name, which is also the name of its directory."""
        return self.name or checkpoint_name(self.number)

    def manifest(self, note: Note | None, files: dict[str, StoredFile]) -> Manifest:
        """Build the checkpoint's manifest; ``note`` is the first rank's note."""
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
        """The training position. Reported dataset positions take precedence over those in the note."""
        noted = note.cursor if note is not None else DataCursor()
        datasets: dict[str, object] = {name: cursor.to_json() for name, cursor in self.cursors.items()}
        return replace(noted, datasets=datasets) if datasets else noted

    def path(self, run: Path) -> Path:
        """The checkpoint's directory, for runs in a local directory."""
        return run / layout.CHECKPOINTS / self.folder


@dataclass(frozen=True)
class Signer:
    """Signs the manifests that a run commits, if all files come from the run's own workers."""

    run: str
    key: Key

    def sign(self, manifest: Manifest, notes: Mapping[int, Note | None]) -> Manifest:
        """Return the manifest, signed if the run's key signed all ``notes`` (by rank)."""
        place = manifest.attempt, manifest.seq
        ours = all(note is not None and note.is_signed(self.key, *place, rank) for rank, note in notes.items())
        return manifest.signed(self.run, self.key) if ours else manifest

    def extend(self, known: Manifest, larger: Manifest, late: int, note: Note | None) -> Manifest:
        """Return the manifest of a checkpoint extended by a late rank, signed if ``known`` and ``note`` are."""
        unsigned = replace(larger, signature="")
        return self.sign(unsigned, {late: note}) if known.is_signed(self.key) else unsigned


def commit(run: Path, what: CommitRequest, signer: Signer | None = None) -> SavedCheckpoint:
    """Commit these ranks' staged files as a checkpoint. If it raises, nothing is left that looks like a checkpoint."""
    slots = [Slot(run, what.attempt, what.seq, rank) for rank in what.ranks]
    notes = {slot.rank: read_note(slot) for slot in slots}
    note = notes[slots[0].rank]
    _check_slots(slots)
    if what.name is None and note is not None:
        what = replace(what, name=note.adopted or note.name)
    final = what.path(run)
    whole = final if note is not None and note.adopted else slots[0].folder
    if whole.is_symlink():
        raise StorageError(f"{whole} is a link, and Headway writes only inside a run's directory: remove it")
    remove_json(whole / layout.MANIFEST)  # left by an interrupted commit
    if whole == final:
        replace_links(whole)  # only adopted directories can contain links
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
        slot.clear()
    return SavedCheckpoint(final, manifest, clashes, validation=validation)


def check_adopted_files(manifest: Manifest, notes: Iterable[Note | None]) -> None:
    """Raise StorageError if a file of the reported directory has since vanished or changed."""
    for name, stored in ((name, stored) for note in notes if note is not None for name, stored in note.files.items()):
        there = manifest.files.get(name)
        if there is None:
            raise StorageError(
                f"{name} vanished from {manifest.name} after it was reported and before it was committed"
            )
        if there.size != stored.size and manifest.world_size == 1:  # otherwise another rank may have written it
            raise StorageError(
                f"{name} in {manifest.name} changed after it was reported and before it was committed: it had "
                f"{stored.size:,} bytes and has {there.size:,}"
            )


def _validation_request(slots: Sequence[Slot]) -> dict[str, Any] | None:
    """The validation request of the lowest rank that has one."""
    requests = (note.validation for slot in slots if (note := read_note(slot)) is not None)
    return next((request for request in requests if request is not None), None)


def _check_slots(slots: Sequence[Slot]) -> None:
    for slot in slots:
        if not slot.folder.is_dir() or slot.folder.is_symlink():
            raise StorageError(f"the files of rank {slot.rank} for report {slot.seq} are gone from {slot.folder}")
    names = {slot.rank: note.adopted or note.name for slot in slots if (note := read_note(slot)) is not None}
    if len(set(names.values())) > 1:
        raise StorageError(f"the ranks call this checkpoint by different names: {names}")


def publish(whole: Path, final: Path) -> None:
    """Turn a directory with a manifest into a checkpoint, in one step.

    An adopted directory is already in place and became a checkpoint when its manifest was written.
    """
    if whole != final:
        if os.path.lexists(final):
            raise StorageError(f"there is a folder {final.name} already: every checkpoint needs a name of its own")
        durable_fs.move(whole, final)
    durable_fs.flush(final.parent)


def extend(path: Path, late: Slot, signer: Signer | None = None) -> SavedCheckpoint:
    """Add a rank's files to a checkpoint: build the larger one next to it and swap the two in one step."""
    manifest = read_manifest(path)
    known = late.folder.with_name(f"{late.folder.name}.known")
    beside = [layout.METADATA] if (path / layout.METADATA).is_file() else []  # safe to link: a change replaces the file
    for name in (*manifest.files, *beside):
        durable_fs.make_directory((known / name).parent)
        durable_fs.link(path / name, known / name)  # committed files never change
    order = sorted([Given(min(manifest.ranks), known, Note(0, {})), Given.by(late)], key=lambda given: given.rank)
    clashes = tuple(merge(order))
    whole = order[0].folder
    ranks = sorted([*manifest.ranks, late.rank])
    larger = replace(manifest, ranks=ranks, files=flush_files(whole), time=time.time(), versions=versions())
    validation = carry_over(path, whole, _validation_request([late]))
    if signer is not None:
        larger = signer.extend(manifest, larger, late.rank, read_note(late))
    write_manifest(whole, larger)
    durable_fs.exchange(whole, path)
    durable_fs.flush(path.parent)
    durable_fs.remove(known)
    late.clear()
    return SavedCheckpoint(path, larger, clashes, validation=validation)


def discard(path: Path) -> None:
    """Remove a checkpoint. It is renamed first, so that a partly removed checkpoint is never visible."""
    trash = path.parent / layout.STAGING / layout.with_ending(path.name, ".discarded")
    durable_fs.make_directory(trash.parent)
    if path.exists():
        durable_fs.move(path, trash)
    durable_fs.remove(trash)
