"""Upload of a rank's files to their final keys in an object store, followed by a note.

checkpoints/checkpoint_000003/…                      the files
checkpoints/.staging/<attempt>.<seq>.rank-<r>.begun  this rank has started to upload
checkpoints/.staging/<attempt>.<seq>.rank-<r>.json   the rank's note: its upload is complete
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.core.checkpoints import FileConflict, StoredFile
from headway.core.errors import StorageError
from headway.core.security.signing import Key
from headway.storage import durable_fs
from headway.storage.checkpoint.handoff_records import Handoff
from headway.storage.checkpoint.manifest import checksum
from headway.storage.checkpoint.merge import shared_by
from headway.storage.checkpoint.required_files import (
    PATIENCE_S,
    FileState,
    Incomplete,
    Inventory,
    changed_since,
    changes_always,
    is_temporary,
    vanished,
)
from headway.storage.checkpoint.staging import Note, check_name, with_source
from headway.storage.object_store.base import ObjectStore
from headway.storage.run import layout

FILES_AT_ONCE = 4


@dataclass(frozen=True)
class RankUpload:
    """The local files of one rank for one report, and their destination.

    ``mine`` are the names that this rank uploads. Other ranks upload the others: this rank only compares their content.
    """

    store: ObjectStore  # rooted at the run
    attempt: int
    seq: int
    rank: int
    source: Path
    folder: str  # of the checkpoint
    given: Inventory  # of the source
    names: tuple[str, ...]
    mine: frozenset[str]
    key: Key | None = None  # of the run
    frozen: bool = False  # the files must be unchanged since the report

    @property
    def destination(self) -> dict[str, Any]:
        """The destination, as plain data for a hand-off."""
        return {"folder": self.folder, "names": list(self.names), "mine": sorted(self.mine)}

    @classmethod
    def of(cls, store: ObjectStore, handoff: Handoff, key: Key) -> RankUpload:
        """The upload of a hand-off.

        Args:
            store: The store, rooted at the run.
            handoff: The hand-off of a worker.
            key: The run's key.
        """
        to = handoff.upload
        assert to is not None, "hand-offs of a run in a store have a destination"
        names, mine = tuple(to["names"]), frozenset(to["mine"])
        report = (handoff.attempt, handoff.seq, handoff.rank)
        aside = handoff.aside
        return cls(store, *report, aside, to["folder"], inventory_at(aside), names, mine, key)

    def moved_to(self, aside: Path) -> RankUpload:
        """The upload after its files were moved."""
        return replace(self, source=aside, given=inventory_at(aside), frozen=False)


def note_key(attempt: int, seq: int, rank: int) -> str:
    return f"{layout.CHECKPOINTS}/{layout.STAGING}/{attempt}.{seq}.rank-{rank}.json"


def begun_key(attempt: int, seq: int, rank: int) -> str:
    return note_key(attempt, seq, rank).removesuffix("json") + "begun"


def folder_key(name: str) -> str:
    return f"{layout.CHECKPOINTS}/{name}"


def inventory_at(source: Path, *, shared: bool = False) -> Inventory:
    """The inventory of a local directory, without its staging directory."""
    return Inventory.of(source, leave_out=source / layout.STAGING, shared=shared)


def send(rank_upload: RankUpload, note: Note) -> Note:
    """Upload the files and then the note, which is returned."""
    note = note if note.source else with_source(note, rank_upload.source)  # moved files have their note already
    if note.world_size > 1:  # if this rank dies, the others' files must not seem complete
        rank_upload.store.put(begun_key(rank_upload.attempt, rank_upload.seq, rank_upload.rank), b"")
    target = rank_upload.store.at(folder_key(rank_upload.folder))
    files = _send_files(rank_upload, target)
    mine = {name: stored for name, stored in files.items() if name in rank_upload.mine}
    left = {name: stored for name, stored in files.items() if name not in rank_upload.mine}
    said = replace(
        note,
        name=rank_upload.folder,
        files=mine,
        left=left,
        lacking=[*note.lacking, *_lacking(rank_upload, files)],
        seconds=time.monotonic() - note.began,
    )
    put_note(rank_upload.store, rank_upload.attempt, rank_upload.seq, rank_upload.rank, said, rank_upload.key)
    return said


def _send_files(rank_upload: RankUpload, target: ObjectStore) -> dict[str, StoredFile]:
    """Upload the files, each in one consistent state, and return sizes and checksums. Changing files are retried."""
    until = time.monotonic() + PATIENCE_S
    done: dict[str, StoredFile] = {}
    pending = list(rank_upload.names)
    while pending:
        before = {name: state for name in pending if (state := _state(rank_upload, name)) is not None}
        written = {name for name in before if _is_open_for_writing(rank_upload.source / name)}
        with ThreadPoolExecutor(2 * FILES_AT_ONCE) as pool:  # half upload, half compute checksums
            sums = {name: pool.submit(_checksum, rank_upload.source / name) for name in before}
            sent = {name: pool.submit(_sent, target, name, rank_upload) for name in before if name in rank_upload.mine}
            found = {name: each.result() for name, each in sums.items()}
            arrived = {name: each.result() for name, each in sent.items()}
        pending = []
        for name, state in before.items():
            digest, is_sent = found[name], arrived.get(name, True)
            if digest is None or not is_sent or (now := _state(rank_upload, name)) is None:
                continue  # the file has vanished
            if now == state and (name not in written or _checksum(rank_upload.source / name) == digest):
                done[name] = StoredFile(state.size, digest)
            else:
                pending.append(name)
        if pending and time.monotonic() > until:
            raise Incomplete(changes_always(rank_upload.source / pending[0]))
    return done


def _lacking(rank_upload: RankUpload, done: Collection[str]) -> tuple[str, ...]:
    """Missing files that may be another rank's. Incomplete if another file is missing."""
    for name in rank_upload.names:
        if name not in done and name not in rank_upload.given.files and not is_temporary(name):
            raise Incomplete(vanished(rank_upload.source / name))
    return rank_upload.given.check(
        [*done, *(name for name in rank_upload.given.files if name not in rank_upload.names)], rank_upload.source
    )


def _state(rank_upload: RankUpload, name: str) -> FileState | None:
    """The state of a file; None if it has vanished. Incomplete if it must not change and did."""
    try:
        state = FileState.of(rank_upload.source / name)
    except FileNotFoundError:
        return None
    if rank_upload.frozen and state != rank_upload.given.files.get(name):
        raise Incomplete(changed_since(rank_upload.source / name))
    return state


def _checksum(path: Path) -> str | None:
    try:
        return checksum(path)
    except FileNotFoundError:
        return None


def _is_open_for_writing(path: Path) -> bool:
    """Whether a process has the file open for writing, so that its content may change without its state."""
    try:
        return durable_fs.is_open_for_writing(path)
    except FileNotFoundError:
        return False


def _sent(target: ObjectStore, name: str, rank_upload: RankUpload) -> bool:
    try:
        target.upload(name, rank_upload.source / name)
    except FileNotFoundError:
        return False
    return True


def put_note(store: ObjectStore, attempt: int, seq: int, rank: int, note: Note, key: Key | None) -> None:
    store.put(note_key(attempt, seq, rank), note.signed(key, attempt, seq, rank).to_json())


def get_note(store: ObjectStore, attempt: int, seq: int, rank: int) -> Note:
    where = store.at(folder_key(layout.STAGING)).url
    try:
        return Note.from_json(store.read(note_key(attempt, seq, rank)))
    except FileNotFoundError:
        raise StorageError(f"the files of rank {rank} for report {seq} are missing in {where}") from None
    except ValueError as error:
        raise StorageError(f"the note of rank {rank} for report {seq} is damaged: {error}") from error


def check_adopted(store: ObjectStore, path: str) -> tuple[str, dict[str, StoredFile]]:
    """The name and files of a directory among the run's checkpoints to which the user has uploaded files."""
    checkpoints = store.at(layout.CHECKPOINTS)
    parent, _, name = path.rstrip("/").rpartition("/")
    if parent.strip("/") not in (checkpoints.path.strip("/"), checkpoints.url.strip("/")) or name.startswith("."):
        raise StorageError(f"{path} is not a directory in {checkpoints.url}: NO_UPLOAD takes only such directories")
    check_name(name)
    found = checkpoints.at(name).sizes()
    if not found:
        raise StorageError(f"the reported checkpoint {path} contains no files: write them before you report it")
    if layout.MANIFEST in found:
        raise StorageError(f"{path} is already a checkpoint: write the next one into another directory")
    return name, {file: StoredFile(size) for file, size in found.items() if file not in layout.BESIDE}


def differing(notes: Sequence[tuple[int, Note]]) -> Iterator[FileConflict]:
    """Files that differ between ranks. The file of the rank that claimed the name first was uploaded."""
    said = dict(notes)
    owners = {name: rank for rank, note in notes for name in note.files}
    for name, owner in owners.items():
        stored = said[owner].files[name]
        others = [rank for rank, note in notes if note.left.get(name, stored) != stored]
        if others:
            yield FileConflict(name, (owner, *others), shared_by(said[rank] for rank in (owner, *others)))
