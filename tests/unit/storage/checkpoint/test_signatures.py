"""Proof of origin: which bytes of a checkpoint are trusted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headway.core.checkpoints import Manifest, StoredFile
from headway.core.security.signing import Key, user_key
from headway.storage.checkpoint import handoff_records
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.commit import CommitRequest, Signer, commit, extend
from headway.storage.checkpoint.recovery import recover
from headway.storage.checkpoint.signatures import Proof, is_pickle, proof_of, trusted
from headway.storage.checkpoint.staging import Note, Slot, adopt, stage, stage_dict

DATA = b"pickled"
KEY = Key(b"of the run")


def manifest() -> Manifest:
    return Manifest(
        number=0,
        name="checkpoint_000000",
        seq=0,
        attempt=1,
        world_size=1,
        ranks=[0],
        metrics={},
        files={"deep/a.pkl": StoredFile(len(DATA), hashlib.sha256(DATA).hexdigest())},
        time=0.0,
        versions={},
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.pkl").write_bytes(DATA)
    return tmp_path


def test_a_manifest_of_this_user_proves_the_bytes_of_its_files(root: Path) -> None:
    signed = manifest().signed("some run", user_key().for_run("some run"))
    proof = proof_of(root, signed)
    assert not proof.doubt
    assert proof.covers(root / "deep" / "a.pkl", DATA)
    assert proof.covers_file(root / "deep" / "a.pkl")
    (root / "deep" / "a.pkl").write_bytes(b"another")
    assert not proof.covers_file(root / "deep" / "a.pkl")
    assert not proof.covers(root / "deep" / "a.pkl", b"another")


def test_a_file_that_the_manifest_does_not_name_is_not_covered(root: Path) -> None:
    proof = proof_of(root, manifest().signed("some run", user_key().for_run("some run")))
    (root / "b.pkl").write_bytes(DATA)
    assert not proof.covers(root / "b.pkl", DATA)
    assert not proof.covers_file(root / "b.pkl")


def test_the_key_of_the_run_counts_without_the_users_key(root: Path) -> None:
    signed = manifest().signed("some run", KEY)
    assert "not signed by your key" in proof_of(root, signed).doubt
    assert proof_of(root, signed, KEY).covers_file(root / "deep" / "a.pkl")
    assert "not signed by your key" in proof_of(root, signed, Key(b"of another run")).doubt


def test_nothing_is_proven_without_manifest_or_signature(root: Path) -> None:
    for proof in (proof_of(root, None), proof_of(root, manifest())):
        assert proof.doubt
        assert not proof.covers_file(root / "deep" / "a.pkl")


def test_a_user_can_trust_all_files(root: Path) -> None:
    proof = trusted(root)
    assert proof == Proof(root, everything=True)
    assert proof.covers(root / "any", b"thing")
    assert proof.covers_file(root / "deep" / "a.pkl")


# --- pickles between report and commit ---

SIGNER = Signer("some run", KEY)
PICKLED = "pickled.pkl"


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    return Slot(tmp_path / "run", 1, 0, 0)


def write(folder: Path) -> Path:
    """A dict with a pickle, and a file that only the user's own code opens."""
    folder.mkdir(parents=True)
    Checkpoint.from_dict({"number": 1j}).to_directory(folder)
    (folder / "model.pt").write_bytes(DATA)
    return folder


def reported(folder: Path, world_size: int = 1) -> Note:
    return Note(world_size, {}).with_pickles(Checkpoint(folder).own_pickles())


def as_dict(slot: Slot, source: Path) -> Path:
    stage_dict({"number": 1j}, slot, Note(1, {}), KEY)
    return slot.folder


def copied(slot: Slot, source: Path) -> Path:
    stage(write(source), slot, reported(source), KEY)
    return slot.folder


def adopted(slot: Slot, source: Path) -> Path:
    place = write(slot.run / "checkpoints" / "mine")
    adopt(place, slot, reported(place), KEY)
    return place


def moved(slot: Slot, source: Path, *, inside: bool = False) -> Path:
    handoff = handoff_records.begin(slot, write(source), reported(source), KEY, inside=inside)
    assert handoff is not None
    return handoff.aside


def moved_inside(slot: Slot, source: Path) -> Path:
    return moved(slot, source, inside=True)


def as_shards(slot: Slot, source: Path) -> Path:
    shards = source / "tracked" / "sharded-model"
    shards.mkdir(parents=True)
    (shards / ".metadata").write_bytes(DATA)
    pickles = {"tracked/sharded-model/.metadata": hashlib.sha256(DATA).hexdigest()}
    stage(source, slot, Note(1, {}, pickles=pickles), KEY)
    return slot.folder


SAVES = [as_dict, copied, adopted, moved, moved_inside, as_shards]
Save = Callable[[Slot, Path], Path]


@pytest.mark.parametrize("save", SAVES)
def test_a_recovered_save_is_signed(save: Save, slot: Slot, tmp_path: Path) -> None:
    save(slot, tmp_path / "source")
    [saved] = recover(slot.run, crashed=True, signer=SIGNER).kept
    assert saved.manifest.is_signed(KEY)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("added", [False, True])
def test_a_recovered_save_with_another_pickle_is_kept_and_not_signed(
    added: bool, save: Save, slot: Slot, tmp_path: Path
) -> None:
    """As if another user had a copy of the interrupted run in the meantime."""
    folder = save(slot, tmp_path / "source")
    pickled = next(path for path in folder.rglob("*") if path.name in (PICKLED, ".metadata"))
    (folder / "deep").mkdir()
    ((folder / "deep" / PICKLED) if added else pickled).write_bytes(b"x" * pickled.stat().st_size)
    [saved] = recover(slot.run, crashed=True, signer=SIGNER).kept
    assert not saved.manifest.is_signed(KEY)
    assert not saved.manifest.signature


def test_a_recovered_save_of_a_version_without_checksums_in_its_note_is_kept_and_not_signed(
    slot: Slot, tmp_path: Path
) -> None:
    copied(slot, tmp_path / "source")
    note = json.loads(slot.note.read_bytes())
    del note["pickles"]
    slot.note.write_text(json.dumps(note))
    [saved] = recover(slot.run, crashed=True, signer=SIGNER).kept
    assert not saved.manifest.signature
    assert (Path(saved.path) / "model.pt").read_bytes() == DATA


def test_a_pickle_that_is_replaced_while_it_is_copied_is_not_signed(slot: Slot, tmp_path: Path) -> None:
    note = reported(write(tmp_path / "source"))
    (tmp_path / "source" / PICKLED).write_bytes(b"another")
    stage(tmp_path / "source", slot, note, KEY)
    what = CommitRequest(number=0, seq=0, attempt=1, world_size=1, ranks=(0,), metrics={})
    assert not commit(slot.run, what, SIGNER).manifest.signature


def test_each_rank_proves_its_own_pickles_also_when_it_is_late(slot: Slot, tmp_path: Path) -> None:
    late = replace(slot, rank=1)
    for each in (slot, late):
        (source := tmp_path / str(each.rank)).mkdir()
        write(source / f"rank-{each.rank}")
        stage(source, each, reported(source, 2), KEY)
    what = CommitRequest(number=0, seq=0, attempt=1, world_size=2, ranks=(0,), metrics={})
    first = commit(slot.run, what, SIGNER)
    assert first.manifest.is_signed(KEY)
    assert extend(Path(first.path), late, SIGNER).manifest.is_signed(KEY)


def test_a_pickle_of_another_user_is_not_signed_and_the_users_own_are(tmp_path: Path) -> None:
    folder = write(tmp_path / "own")
    assert list(Checkpoint(folder).own_pickles() or ()) == [PICKLED]
    (folder / "deep").mkdir()
    (folder / "deep" / PICKLED).write_bytes(b"another")  # without a dict.json, which may be added later
    assert list(Checkpoint(folder).own_pickles() or ()) == [PICKLED]


def test_files_that_headway_opens_as_pickles() -> None:
    assert all(map(is_pickle, ["pickled.pkl", "tracked/shared/pickled.pkl", "a\nb/pickled.pkl"]))
    assert is_pickle("tracked/sharded-model/.metadata")
    assert not any(map(is_pickle, ["model.pt", "a.pickled.pkl", ".metadata", "tracked/sharded-model/__0_0.distcp"]))
