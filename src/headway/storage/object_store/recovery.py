"""Recovery of the checkpoints in an object store: as in a directory, but by listing instead of renaming.

1. Complete saves that the driver did not commit are committed, if all ranks that save have saved. Late files are
   added to their checkpoints.
2. Directories without a manifest, and notes, are swept.
3. The file sizes of all checkpoints are compared with the store's listing; after a crash also every byte of the newest.
   The manifest of a damaged checkpoint is renamed, so that no reader takes it for a checkpoint.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath
from typing import Protocol

from headway.core.checkpoints import Manifest, SavedCheckpoint, ValidationRecord
from headway.core.errors import StorageError
from headway.storage.checkpoint.commit import CommitRequest
from headway.storage.checkpoint.manifest import NewerFormat, one_sentence, parse_manifest
from headway.storage.checkpoint.recovery import (
    LOOKS,
    Recovered,
    Survey,
    complete_rounds,
    mixed_steps,
    warn_of_reading,
)
from headway.storage.checkpoint.staging import Note
from headway.storage.checkpoint.validation_record import parse_validation
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.lease import LeaseLost
from headway.storage.object_store.upload import folder_key
from headway.storage.object_store.verify import SET_ASIDE, damage
from headway.storage.run import layout

_NOTE = re.compile(r"(\d+)\.(\d+)\.rank-(\d+)\.(json|begun)")


class Committer(Protocol):
    """Commits checkpoints to a store."""

    @property
    def store(self) -> ObjectStore: ...

    def commit(self, what: CommitRequest) -> SavedCheckpoint: ...

    def extend(self, path: PurePath, attempt: int, seq: int, rank: int) -> SavedCheckpoint: ...


@dataclass(frozen=True)
class Listing:
    """All keys below a run's checkpoints: directories with their files, and the ranks' notes."""

    folders: dict[str, dict[str, int]]
    notes: dict[str, tuple[int, int, int]]  # key -> attempt, seq, rank
    begun: dict[str, tuple[int, int, int]]  # the same for uploads that have started


def saved(store: ObjectStore, manifest: Manifest, validation: ValidationRecord | None) -> SavedCheckpoint:
    folder = store.at(folder_key(manifest.name))
    return SavedCheckpoint(PurePosixPath(folder.path), manifest, validation=validation)


def validation_of(folder: ObjectStore) -> ValidationRecord | None:
    """The validation record of a checkpoint; None if there is none."""
    try:
        return parse_validation(f"{folder.url}/{layout.VALIDATION}", folder.read(layout.VALIDATION))
    except FileNotFoundError:
        return None


def listing(store: ObjectStore) -> Listing:
    folders: dict[str, dict[str, int]] = defaultdict(dict)
    notes: dict[str, tuple[int, int, int]] = {}
    begun: dict[str, tuple[int, int, int]] = {}
    for key, size in store.sizes(layout.CHECKPOINTS).items():
        _, name, *rest = key.split("/")
        if not rest:
            continue
        if name != layout.STAGING:
            folders[name]["/".join(rest)] = size
        elif match := _NOTE.fullmatch(rest[0]):
            said = notes if match[4] == "json" else begun
            said[key] = (int(match[1]), int(match[2]), int(match[3]))
    return Listing(dict(folders), notes, begun)


def survey(store: ObjectStore, known: Listing | None = None) -> Survey:
    """List checkpoints and compare file sizes, without changing anything. Repeated if one disappears meanwhile."""
    for _ in range(1 if known is not None else LOOKS):
        found, vanished = _look(store, known or listing(store))
        if not vanished:
            break
    return found


def _look(store: ObjectStore, known: Listing) -> tuple[Survey, bool]:
    """The checkpoints, and whether any disappeared during the listing."""
    vanished = False
    folders = known.folders
    names = [name for name, files in folders.items() if layout.MANIFEST in files]
    kept: list[SavedCheckpoint] = []
    damaged: dict[PurePath, str] = {}
    for name, data in zip(names, _manifests(store, names), strict=True):
        folder = store.at(folder_key(name))
        if data is None:
            vanished = True  # it is being deleted
            continue
        try:
            manifest = parse_manifest(f"{folder.url}/{layout.MANIFEST}", data)
            wrong = one_sentence(damage(folder, manifest, folders[name], contents=False))
            if manifest.name != name:
                wrong = f"its manifest is that of {manifest.name}"
        except StorageError as error:
            wrong = str(error)
        if wrong:
            damaged[PurePosixPath(folder.path)] = wrong
        else:
            validation = validation_of(folder) if layout.VALIDATION in folders[name] else None
            kept.append(saved(store, manifest, validation))
    return Survey(sorted(kept, key=lambda each: each.manifest.seq), damaged), vanished


def _manifests(store: ObjectStore, names: list[str]) -> list[bytes | None]:
    def read(name: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return store.read(f"{folder_key(name)}/{layout.MANIFEST}")
        return None

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(read, names))


def next_number(store: ObjectStore) -> int:
    return layout.next_number(listing(store).folders)


def recover(backend: Committer, *, crashed: bool) -> Recovered:
    store = backend.store
    notes = list(_use_complete_saves(backend))
    sweep(store)
    notes += _set_damaged_aside(store, crashed=crashed)
    return Recovered(survey(store).kept, notes)


def _use_complete_saves(backend: Committer) -> Iterator[str]:
    """Add late files to their checkpoints, then make checkpoints of the other complete saves; messages about them."""
    store, known = backend.store, listing(backend.store)
    if not known.notes:
        return
    rounds, savers = _staged_rounds(store, known)
    for saved in survey(store, known).kept:
        yield from _extend(backend, saved, known, rounds.get(saved.manifest.round, {}))
    kept = [each.manifest for each in survey(store, known).kept]
    for attempt, seq in complete_rounds(rounds, savers, kept):
        if _all_there(known, rounds[attempt, seq].values()):
            yield from _commit_save(backend, attempt, seq, rounds[attempt, seq])


def _staged_rounds(
    store: ObjectStore, known: Listing
) -> tuple[dict[tuple[int, int], dict[int, Note]], dict[int, set[int]]]:
    """The notes by (attempt, seq) and rank, and the ranks that have begun to upload, by attempt."""
    rounds: dict[tuple[int, int], dict[int, Note]] = defaultdict(dict)
    savers: dict[int, set[int]] = defaultdict(set)
    for key, (attempt, seq, rank) in known.notes.items():
        if (note := _note(store, key)) is not None:
            rounds[attempt, seq][rank] = note
            savers[attempt].add(rank)
    for attempt, _, rank in known.begun.values():
        savers[attempt].add(rank)
    return rounds, savers


def _extend(backend: Committer, saved: SavedCheckpoint, known: Listing, notes: Mapping[int, Note]) -> Iterator[str]:
    """Add the files of ranks that the checkpoint lacks, as a live driver would have done."""
    manifest = saved.manifest
    present = known.folders[manifest.name]
    for rank in sorted(notes.keys() - set(manifest.ranks)):
        note = notes[rank]
        if note.name != manifest.name or any(name not in present for name in (*note.files, *note.left)):
            continue
        try:
            backend.extend(saved.path, *manifest.round, rank)
        except LeaseLost:
            raise
        except StorageError as error:
            text = f"the late files of rank {rank} for report {manifest.seq} cannot be added to {manifest.name}"
            yield f"{text}: {error}"
            continue
        text = f"now includes the files of rank {rank}, which were saved later"
        yield f"{manifest.name} (report {manifest.seq}) {text}"


def _commit_save(backend: Committer, attempt: int, seq: int, notes: Mapping[int, Note]) -> Iterator[str]:
    if mixed := mixed_steps(seq, notes):
        yield mixed
        return
    ranks = tuple(sorted(notes))
    first = notes[ranks[0]]
    name = first.adopted or first.name or ""
    number = layout.number(name)
    what = CommitRequest(
        number=next_number(backend.store) if number is None or number >= layout.MOST else number,
        seq=seq,
        attempt=attempt,
        world_size=first.world_size,
        ranks=ranks,
        metrics=first.metrics,
        name=name,
    )
    try:
        backend.commit(what)
    except LeaseLost:
        raise
    except StorageError as error:
        yield f"report {seq} was saved when the run was interrupted, but its files cannot be kept: {error}"
        return
    yield f"{name} (report {seq}) was saved when the run was interrupted, and is kept"


def _note(store: ObjectStore, key: str) -> Note | None:
    """The note at a key; None if it is damaged: then its save counts as incomplete."""
    try:
        return Note.from_json(store.read(key))
    except ValueError:
        return None


def _all_there(known: Listing, notes: Collection[Note]) -> bool:
    """Whether the store holds exactly the files in the notes, uploaded by their rank or left to another."""
    for note in notes:
        present = known.folders.get(note.adopted or note.name or "", {})
        if {layout.MANIFEST, SET_ASIDE} & set(present):
            return False  # the directory is a checkpoint of another report, or a damaged one
        named = {name for each in notes for name in each.files}
        if any(name not in present for name in (*note.files, *note.left)):
            return False
        if not note.adopted and set(present) - named - set(layout.BESIDE):
            return False  # another rank's upload is unfinished
    return True


def sweep(
    store: ObjectStore, attempt: int | None = None, names: Collection[str] = (), keep: Collection[int] = ()
) -> None:
    """Remove notes and directories without a manifest.

    Args:
        store: The store, rooted at the run.
        attempt: Remove only notes of this attempt and directories in ``names``; None: all.
        names: Names of checkpoints reserved for the attempt. Names that the user has chosen are skipped, because the
            next attempt may already be using them.
        keep: Reports whose notes stay.
    """
    known = listing(store)
    said = {**known.notes, **known.begun}
    notes = {key for key, place in said.items() if attempt in (None, place[0]) and place[1] not in keep}
    unfinished = [name for name, files in known.folders.items() if not {layout.MANIFEST, SET_ASIDE} & set(files)]
    if attempt is not None:
        unfinished = [name for name in unfinished if name in names and layout.number(name) is not None]
    store.delete(notes)
    for name in unfinished:
        folder = store.at(folder_key(name))
        folder.delete(folder.sizes())


def _set_damaged_aside(store: ObjectStore, *, crashed: bool) -> Iterator[str]:
    known = listing(store)
    found = survey(store, known)
    for path, wrong in found.damaged.items():
        _refuse_newer(store, path.name)
        yield _set_aside(store, path.name, wrong)
    for each in reversed(found.kept if crashed else []):
        folder = store.at(folder_key(each.path.name))
        warn_of_reading(each.manifest)
        wrong = one_sentence(damage(folder, each.manifest, known.folders[each.path.name], contents=True))
        if not wrong:
            return
        yield _set_aside(store, each.path.name, wrong)


def _refuse_newer(store: ObjectStore, name: str) -> None:
    key = f"{folder_key(name)}/{layout.MANIFEST}"
    try:
        parse_manifest(store.at(key).url, store.read(key))
    except NewerFormat:
        raise
    except StorageError:
        return


def _set_aside(store: ObjectStore, name: str, wrong: str) -> str:
    folder = store.at(folder_key(name))
    folder.put(SET_ASIDE, folder.read(layout.MANIFEST))
    folder.delete([layout.MANIFEST])
    return f"{name} is damaged and is not used ({wrong}); its manifest was renamed to {SET_ASIDE}"
