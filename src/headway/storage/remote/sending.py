"""A rank's files on their way into an object store: straight to where they will stay, and a note when all are there.

checkpoints/checkpoint_000003/…                 where they will stay
checkpoints/.staging/<attempt>.<seq>.rank-<r>.begun  that this rank will put something there
checkpoints/.staging/<attempt>.<seq>.rank-<r>.json   what it has put there: its last word
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.core.errors import StorageError
from headway.core.origin import Key
from headway.storage import layout
from headway.storage.files import walk
from headway.storage.handoff import Handoff
from headway.storage.manifest import Stored, checksum
from headway.storage.merging import Clash, shared_by
from headway.storage.remote.store import Store
from headway.storage.staging import Note, copied_from

FILES_AT_ONCE = 4


@dataclass(frozen=True)
class Parcel:
    """The files of one rank for one report, on a disk here, and where they shall go.

    ``mine`` are those that this rank puts there; the names of the others are taken: their content is only compared.
    """

    store: Store  # of the run
    attempt: int
    seq: int
    rank: int
    source: Path
    folder: str  # of the checkpoint
    names: tuple[str, ...]
    mine: frozenset[str]
    key: Key | None = None  # of the run

    @property
    def destination(self) -> dict[str, Any]:
        """Where it goes, as JSON can hold it."""
        return {"folder": self.folder, "names": list(self.names), "mine": sorted(self.mine)}

    @classmethod
    def of(cls, store: Store, handed_over: Handoff, key: Key) -> Parcel:
        """One that a worker has left to whoever finds it."""
        there = handed_over.upload
        assert there is not None, "in a run in a store, files go there"
        names, mine = tuple(there["names"]), frozenset(there["mine"])
        who = (handed_over.attempt, handed_over.seq, handed_over.rank)
        return cls(store, *who, handed_over.aside, there["folder"], names, mine, key)


def note_key(attempt: int, seq: int, rank: int) -> str:
    return f"{layout.CHECKPOINTS}/{layout.STAGING}/{attempt}.{seq}.rank-{rank}.json"


def begun_key(attempt: int, seq: int, rank: int) -> str:
    return note_key(attempt, seq, rank).removesuffix("json") + "begun"


def folder_key(name: str) -> str:
    return f"{layout.CHECKPOINTS}/{name}"


def names_in(source: Path) -> tuple[str, ...]:
    """Every file below, as a reader will see it."""
    found = walk(source, leave_out=source / layout.STAGING)
    return tuple(name for name, entry in found if entry.is_file() and name not in (layout.MANIFEST, layout.VALIDATION))


def send(parcel: Parcel, note: Note) -> Note:
    """Everything is in the store when this returns, the note as well."""
    note = copied_from(note, parcel.source)
    if note.world_size > 1:  # should we not come to the end, nobody takes the others' files for all
        parcel.store.put(begun_key(parcel.attempt, parcel.seq, parcel.rank), b"")
    target = parcel.store.at(folder_key(parcel.folder))
    with ThreadPoolExecutor(2 * FILES_AT_ONCE) as pool:  # half of them travel, half of them are summed
        sums = {name: pool.submit(_stored, parcel.source / name) for name in parcel.names}
        sent = {name: pool.submit(_sent, target, name, parcel.source) for name in parcel.names if name in parcel.mine}
        files = {name: stored for name, each in sums.items() if (stored := each.result()) is not None}
        mine = {name: files[name] for name, each in sent.items() if each.result() and name in files}
    left = {name: stored for name, stored in files.items() if name not in parcel.mine}
    said = replace(note, name=parcel.folder, files=mine, left=left, seconds=time.monotonic() - note.began)
    put_note(parcel.store, parcel.attempt, parcel.seq, parcel.rank, said, parcel.key)
    return said


def _stored(path: Path) -> Stored | None:
    """None where it has vanished: somebody's temporary file, which was not ours to keep."""
    try:
        return Stored(path.stat().st_size, checksum(path))
    except FileNotFoundError:
        return None


def _sent(target: Store, name: str, source: Path) -> bool:
    try:
        target.upload(name, source / name)
    except FileNotFoundError:
        return False
    return True


def put_note(store: Store, attempt: int, seq: int, rank: int, note: Note, key: Key | None) -> None:
    store.put(note_key(attempt, seq, rank), note.signed(key, attempt, seq, rank).to_json())


def get_note(store: Store, attempt: int, seq: int, rank: int) -> Note:
    where = store.at(folder_key(layout.STAGING)).url
    try:
        return Note.from_json(store.read(note_key(attempt, seq, rank)))
    except FileNotFoundError:
        raise StorageError(f"the files of rank {rank} for report {seq} are gone from {where}") from None
    except ValueError as error:
        raise StorageError(f"what rank {rank} said of its files for report {seq} is damaged: {error}") from error


def check_adopted(store: Store, path: str) -> str:
    """The name of a folder of the run's checkpoints that holds files already."""
    checkpoints = store.at(layout.CHECKPOINTS)
    parent, _, name = path.rstrip("/").rpartition("/")
    if parent.strip("/") not in (checkpoints.path.strip("/"), checkpoints.url.strip("/")) or name.startswith("."):
        raise StorageError(f"{path} is not a folder in {checkpoints.url}: only such ones need no upload")
    found = checkpoints.at(name).sizes()
    if not found:
        raise StorageError(f"the reported checkpoint {path} holds no file: write it before you report it")
    if layout.MANIFEST in found:
        raise StorageError(f"{path} is a checkpoint already: write the next one into another folder")
    return name


def differing(notes: Sequence[tuple[int, Note]]) -> Iterator[Clash]:
    """Files of which ranks had different contents; what the first to ask for the name has sent is there."""
    said = dict(notes)
    owners = {name: rank for rank, note in notes for name in note.files}
    for name, owner in owners.items():
        stored = said[owner].files[name]
        others = [rank for rank, note in notes if note.left.get(name, stored) != stored]
        if others:
            yield Clash(name, (owner, *others), shared_by(said[rank] for rank in (owner, *others)))
