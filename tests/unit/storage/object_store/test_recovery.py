"""Saves into an object store, interrupted after each request: commits stay, and no partial checkpoint is offered."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

import pytest

from headway.core.checkpoints import StoredFile, checkpoint_name
from headway.core.errors import StorageError
from headway.core.security.signing import Key
from headway.storage.checkpoint import handoff_records
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.commit import CommitRequest, Signer
from headway.storage.checkpoint.handoff_records import Handoff
from headway.storage.checkpoint.manifest import checksum
from headway.storage.checkpoint.staging import Note, Slot
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.checkpoint_backend import ObjectStoreCheckpointBackend
from headway.storage.object_store.lease import LeaseLost
from headway.storage.object_store.upload import RankUpload, begun_key, inventory_at, put_note, send
from headway.storage.run import layout


class Crash(BaseException):
    """Simulates a crash: no request follows."""


@dataclass
class Bucket:
    """The stored objects, and the number of further changes until the crash."""

    objects: dict[str, bytes] = field(default_factory=dict)
    left: int | None = None

    def change(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise Crash
            self.left -= 1


@dataclass(frozen=True)
class MemoryStore:
    """See :class:`headway.storage.object_store.base.ObjectStore`; every put is atomic."""

    bucket: Bucket
    prefix: str = ""

    @property
    def url(self) -> str:
        return f"memory://bucket/{self.prefix}"

    @property
    def path(self) -> str:
        return f"bucket/{self.prefix}"

    @property
    def identity(self) -> str:
        return self.url

    def up(self, levels: int) -> MemoryStore:
        raise NotImplementedError

    filesystem = None

    def at(self, folder: str) -> MemoryStore:
        return MemoryStore(self.bucket, f"{self.prefix}{folder}/")

    def put(self, key: str, data: bytes) -> None:
        self.bucket.change()
        self.bucket.objects[self.prefix + key] = data

    def create(self, key: str, data: bytes) -> bool:
        raise NotImplementedError

    def upload(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes())

    def read(self, key: str) -> bytes:
        try:
            return self.bucket.objects[self.prefix + key]
        except KeyError:
            raise FileNotFoundError(key) from None

    def download(self, key: str, path: Path, size: int) -> str:
        path.write_bytes(self.read(key))
        return checksum(path)

    def checksum(self, key: str, size: int) -> str:
        return hashlib.sha256(self.read(key)).hexdigest()

    def sizes(self, folder: str = "") -> dict[str, int]:
        below = f"{self.prefix}{folder}/" if folder else self.prefix
        found = {key: data for key, data in self.bucket.objects.items() if key.startswith(below)}
        return {key.removeprefix(self.prefix): len(data) for key, data in found.items()}

    def delete(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            self.bucket.change()
            self.bucket.objects.pop(self.prefix + key, None)


KEY = Key(b"of the run")
NAMES = ("model", "deep/er")
FILES = ("dict.json", "pickled.pkl")


def save(store: MemoryStore, folder: Path, seq: int, number: int, *, extends: bool) -> None:
    """Two ranks save, the second one optionally late. Then the oldest checkpoint is removed."""
    backend = ObjectStoreCheckpointBackend(store)
    write(folder, seq)
    ranks = (0,) if extends else (0, 1)
    name = checkpoint_name(number)
    what = CommitRequest(number=number, seq=seq, attempt=1, world_size=2, ranks=ranks, metrics={"seq": seq}, name=name)
    for rank in ranks:
        send(rank_upload(store, folder, seq, rank, name), Note(2, {"seq": seq}))
    saved = backend.commit(what)
    if extends:
        send(rank_upload(store, folder, seq, 1, name), Note(2, {"seq": seq}))
        backend.extend(saved.path, 1, seq, 1)
    for old in backend.survey().kept[:-2]:
        backend.discard(old.path)


def write(folder: Path, seq: int) -> None:
    """Write the files that both ranks save with a report."""
    for rank in (0, 1):
        for name in NAMES:
            path = folder / f"{seq}-{rank}" / f"{name}-{rank}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{seq} {rank} {name}")


def rank_upload(store: MemoryStore, folder: Path, seq: int, rank: int, name: str) -> RankUpload:
    names = tuple(f"{each}-{rank}" for each in NAMES)
    source = folder / f"{seq}-{rank}"
    return RankUpload(store, 1, seq, rank, source, name, inventory_at(source), names, frozenset(names))


def look(store: MemoryStore) -> list[int]:
    """The reports with checkpoints. Asserts that every byte of each is correct."""
    found = ObjectStoreCheckpointBackend(store).survey()
    assert not found.damaged
    for saved in found.kept:
        manifest, wrong = ObjectStoreCheckpointBackend(store).verify(saved.path.name)
        assert wrong == []
        for rank in manifest.ranks:
            for name in NAMES:
                content = store.at(f"{layout.CHECKPOINTS}/{saved.path.name}").read(f"{name}-{rank}")
                assert content.decode() == f"{manifest.seq} {rank} {name}"
    return [saved.manifest.seq for saved in found.kept]


@pytest.mark.parametrize("extends", [False, True], ids=["together", "late"])
def test_every_beginning_of_a_save(tmp_path: Path, extends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.storage.object_store.upload.FILES_AT_ONCE", 1)  # sequential requests
    for cut in range(200):
        store = MemoryStore(Bucket()).at("run")
        for seq in (0, 1):
            save(store, tmp_path / f"{cut}", seq, seq, extends=extends)
        assert look(store) == [0, 1]
        store.bucket.left = cut
        try:
            save(store, tmp_path / f"{cut}", 2, 2, extends=extends)
            whole = True
        except Crash:
            whole = False
        store.bucket.left = None
        offered = look(store)
        assert offered[-1] in (1, 2), "at least the newest one is there"
        recovered = ObjectStoreCheckpointBackend(store).recover(crashed=True)
        assert [saved.manifest.seq for saved in recovered.kept] == look(store)
        assert set(look(store)) >= set(offered), "recovery loses nothing"
        _check_nothing_is_left(store)
        if whole:
            assert look(store) == [1, 2]
            assert cut > 8
            return
    raise AssertionError("the save never came to its end")


def test_a_save_whose_commit_has_failed_outlives_the_end_of_its_attempt(tmp_path: Path) -> None:
    store = MemoryStore(Bucket()).at("run")
    names = [checkpoint_name(seq) for seq in (0, 1)]
    for seq, name in enumerate(names):
        (tmp_path / f"{seq}-0").mkdir()
        for each in NAMES:
            path = tmp_path / f"{seq}-0" / f"{each}-0"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{seq} 0 {each}")
        send(rank_upload(store, tmp_path, seq, 0, name), Note(1, {}))
    ObjectStoreCheckpointBackend(store).sweep(1, names[:1], keep={1})
    [kept] = ObjectStoreCheckpointBackend(store).recover(crashed=False).kept
    assert (kept.path.name, look(store)) == (names[1], [1])


def test_a_save_that_cannot_be_finished_does_not_keep_the_run_from_being_opened() -> None:
    store = MemoryStore(Bucket()).at("run")
    store.put(f"{layout.CHECKPOINTS}/mine/a", b"changed since")
    note = Note(1, {}, name="mine", adopted="mine", files={"a": StoredFile(3)})
    put_note(store, 1, 0, 0, note, None)
    recovered = ObjectStoreCheckpointBackend(store).recover(crashed=True)
    assert recovered.kept == []
    [said] = recovered.notes
    assert "report 0 was saved when the run was interrupted, but its files cannot be kept: a in mine changed" in said
    assert ObjectStoreCheckpointBackend(store).recover(crashed=True).notes == []


def _check_nothing_is_left(store: MemoryStore) -> None:
    kept = {saved.path.name: saved.manifest for saved in ObjectStoreCheckpointBackend(store).survey().kept}
    for key in store.sizes(layout.CHECKPOINTS):
        _, name, *rest = key.split("/")
        assert name in kept, f"{key} is of no checkpoint"
        file: Any = "/".join(rest)
        assert file == layout.MANIFEST or file in kept[name].files or len(kept[name].ranks) == 1, key


def test_what_nobody_made_a_checkpoint_of_is_made_one(tmp_path: Path) -> None:
    store = MemoryStore(Bucket()).at("run")
    save(store, tmp_path, 0, 0, extends=False)
    for rank in (0, 1):
        (tmp_path / f"1-{rank}").mkdir()
        for name in NAMES:
            path = tmp_path / f"1-{rank}" / f"{name}-{rank}"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"1 {rank} {name}")
    send(rank_upload(store, tmp_path, 1, 0, "checkpoint_000001"), Note(2, {"seq": 1}))
    half = MemoryStore(Bucket(dict(store.bucket.objects)), store.prefix)
    assert ObjectStoreCheckpointBackend(half).recover(crashed=True).notes == []
    assert look(half) == [0], "one rank's files are no checkpoint"
    send(rank_upload(store, tmp_path, 1, 1, "checkpoint_000001"), Note(2, {"seq": 1}))
    (note,) = ObjectStoreCheckpointBackend(store).recover(crashed=True).notes
    assert note == "checkpoint_000001 (report 1) was saved when the run was interrupted, and is kept"
    assert look(store) == [0, 1]
    assert ObjectStoreCheckpointBackend(store).next_number() == 2


def test_a_save_whose_commit_failed_is_kept_although_newer_ones_were_committed(tmp_path: Path) -> None:
    store = MemoryStore(Bucket()).at("run")
    save(store, tmp_path, 0, 0, extends=False)
    write(tmp_path, 1)
    for rank in (0, 1):
        send(rank_upload(store, tmp_path, 1, rank, checkpoint_name(1)), Note(2, {"seq": 1}))
    save(store, tmp_path, 2, 2, extends=False)
    ObjectStoreCheckpointBackend(store).recover(crashed=False)
    assert look(store) == [0, 1, 2]


def test_late_files_that_the_driver_did_not_hear_of_are_added_to_their_checkpoint(tmp_path: Path) -> None:
    store = MemoryStore(Bucket()).at("run")
    name = checkpoint_name(0)
    write(tmp_path, 0)
    send(rank_upload(store, tmp_path, 0, 0, name), Note(2, {"seq": 0}))
    what = CommitRequest(number=0, seq=0, attempt=1, world_size=2, ranks=(0,), metrics={"seq": 0}, name=name)
    ObjectStoreCheckpointBackend(store).commit(what)
    send(rank_upload(store, tmp_path, 0, 1, name), Note(2, {"seq": 0}))
    recovered = ObjectStoreCheckpointBackend(store).recover(crashed=True)
    assert [saved.manifest.ranks for saved in recovered.kept] == [[0, 1]]
    assert recovered.notes == ["checkpoint_000000 (report 0) now includes the files of rank 1, which were saved later"]
    assert look(store) == [0]
    _check_nothing_is_left(store)


def test_the_first_save_may_be_that_of_any_rank(tmp_path: Path) -> None:
    store = MemoryStore(Bucket()).at("run")
    write(tmp_path, 0)
    send(rank_upload(store, tmp_path, 0, 1, checkpoint_name(0)), Note(2, {"seq": 0}))
    assert [saved.manifest.ranks for saved in ObjectStoreCheckpointBackend(store).recover(crashed=True).kept] == [[1]]


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (("epoch 0",), []),
        (("epoch 0", "epoch 0"), ["checkpoint_000000 (report 0) was saved when the run was interrupted, and is kept"]),
        (("epoch 2", "epoch 1"), ["rank 0's state at epoch 2 and rank 1's state at epoch 1"]),
    ],
    ids=["one rank", "both ranks", "different steps"],
)
def test_tracked_state_needs_every_rank_at_the_same_step(
    tmp_path: Path, places: tuple[str, ...], said: list[str]
) -> None:
    store = MemoryStore(Bucket()).at("run")
    for rank, place in enumerate(places):
        for name in NAMES:
            path = tmp_path / f"0-{rank}" / f"{name}-{rank}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"0 {rank} {name}")
        send(rank_upload(store, tmp_path, 0, rank, "checkpoint_000000"), Note(2, {}, place=place))
    notes = ObjectStoreCheckpointBackend(store).recover(crashed=True).notes
    assert len(notes) == len(said)
    assert all(text in note for text, note in zip(said, notes, strict=True))
    assert look(store) == ([0] if places == ("epoch 0", "epoch 0") else [])


def test_a_file_and_a_directory_of_one_name_are_no_checkpoint(tmp_path: Path) -> None:
    store = MemoryStore(Bucket()).at("run")
    name = checkpoint_name(0)
    for rank, file in enumerate(["a", "a/b"]):
        source = tmp_path / str(rank)
        (source / file).parent.mkdir(parents=True)
        (source / file).write_text("x")
        given = inventory_at(source)
        send(RankUpload(store, 1, 0, rank, source, name, given, (file,), frozenset({file})), Note(2, {}))
    what = CommitRequest(number=0, seq=0, attempt=1, world_size=2, ranks=(0, 1), metrics={}, name=name)
    with pytest.raises(StorageError, match="rank 0 reported a as a file and rank 1 as a directory"):
        ObjectStoreCheckpointBackend(store).commit(what)
    assert look(store) == []


@dataclass(frozen=True)
class Moved:
    """A save of moved files that is uploaded and not committed."""

    backend: ObjectStoreCheckpointBackend
    source: Path
    handoff: Handoff

    @classmethod
    def make(cls, folder: Path) -> Moved:
        store = MemoryStore(Bucket()).at("run")
        backend = ObjectStoreCheckpointBackend(store, signer=Signer("id", KEY), home=folder / "home")
        source = folder / "mine"
        source.mkdir()
        (source / "a").write_text("weights")
        upload = {"folder": checkpoint_name(0), "names": ["a"], "mine": ["a"]}
        handoff = handoff_records.begin(Slot(folder / "home", 1, 0, 0), source, Note(2, {}), KEY, upload)
        assert backend.finish(1, 0, 0)
        return cls(backend, source, handoff)

    def where(self) -> tuple[bool, bool]:
        """Whether the files are in the user's directory, and whether they are still next to it."""
        return (self.source / "a").exists(), self.handoff.aside.exists()


def test_moved_files_stay_on_this_machine_until_their_upload_is_committed(tmp_path: Path) -> None:
    moved = Moved.make(tmp_path)
    assert moved.where() == (False, True)
    what = CommitRequest(
        number=0, seq=0, attempt=1, world_size=2, ranks=(0,), metrics={"seq": 0}, name=checkpoint_name(0)
    )
    moved.backend.commit(what)
    assert moved.where() == (False, False)
    assert list(handoff_records.pending(tmp_path / "home", KEY)) == []


@pytest.mark.parametrize("how", ["dropped", "swept", "opened"])
def test_moved_files_that_do_not_become_a_checkpoint_are_given_back(how: str, tmp_path: Path) -> None:
    moved = Moved.make(tmp_path)
    notes = ["the files of rank 0"]
    match how:
        case "dropped":
            moved.backend.clear(1, 0, 0, checkpoint_name(0))
        case "swept":
            moved.backend.sweep(1, [checkpoint_name(0)], keep=[0])
            assert moved.where() == (False, True), "a failed commit keeps its files"
            moved.backend.sweep(1, [checkpoint_name(0)])
        case _:
            put_begun(moved.backend.store, 1)  # rank 1 had begun to save
            notes = moved.backend.recover(crashed=True).notes
    assert moved.where() == (True, False)
    assert len(notes) == 1
    assert moved.backend.survey().kept == []


def put_begun(store: ObjectStore, rank: int) -> None:
    store.put(begun_key(1, 0, rank), b"")


def test_files_that_the_next_owner_has_swept_are_not_called_missing() -> None:
    """A driver that was suspended for long in the middle of a commit is told that the run was taken over."""

    def check_lease() -> None:
        raise LeaseLost("host has taken this run over")

    backend = ObjectStoreCheckpointBackend(MemoryStore(Bucket()), check_lease)
    what = CommitRequest(number=0, seq=0, attempt=1, world_size=1, ranks=(0,), metrics={}, name="checkpoint_000000")
    with pytest.raises(LeaseLost, match="has taken this run over"):
        backend.commit(what)
    with pytest.raises(LeaseLost, match="has taken this run over"):
        backend.extend(PurePath("checkpoint_000000"), 1, 0, 1)


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("adopted", [False, True])
def test_a_recovered_save_is_signed_if_its_pickles_are_those_that_were_reported(
    adopted: bool, changed: bool, tmp_path: Path
) -> None:
    store, signer = MemoryStore(Bucket()), Signer("some run", Key(b"of the run"))
    Checkpoint.from_dict({"number": 1j}).to_directory(tmp_path / "source")
    source = tmp_path / "source"
    given = inventory_at(source)
    upload = RankUpload(store, 1, 0, 0, source, "mine", given, FILES, frozenset(FILES), signer.key)
    note = Note(1, {}).with_pickles(Checkpoint(source).own_pickles())
    sent = send(upload, note)
    if adopted:
        files = {name: StoredFile(stored.size) for name, stored in sent.files.items()}
        put_note(store, 1, 0, 0, replace(note, name="mine", adopted="mine", files=files), signer.key)
    if changed:
        key = f"checkpoints/mine/{FILES[1]}"
        store.put(key, b"x" * len(store.read(key)))
    [saved] = ObjectStoreCheckpointBackend(store, signer=signer).recover(crashed=False).kept
    assert saved.manifest.is_signed(signer.key) == (not (adopted and changed)), "of an upload, the checksum is known"
    assert saved.manifest.files[FILES[1]].sha256 == note.pickles[FILES[1]] or (adopted and changed)
