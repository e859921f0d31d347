"""Proof of origin: which bytes of a checkpoint are trusted."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from headway.core.checkpoints import Manifest, StoredFile
from headway.core.security.signing import Key, user_key
from headway.storage.checkpoint.signatures import Proof, proof_of, trusted

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
