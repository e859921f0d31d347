"""Tests of every checkpoint backend against the contract of backends; broken backends must fail it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePath

import pytest

from headway.core.checkpoints import Manifest, SavedCheckpoint, ValidationRecord
from headway.core.errors import StorageError
from headway.core.security.signing import user_key
from headway.storage import durable_fs
from headway.storage.checkpoint.backend import CheckpointBackend, LocalCheckpointBackend
from headway.storage.checkpoint.commit import CommitRequest, Signer
from headway.storage.checkpoint.manifest import damage, read_manifest, write_manifest
from headway.storage.checkpoint.recovery import Survey
from headway.storage.checkpoint.staging import Note, Slot, stage
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.checkpoint_backend import ObjectStoreCheckpointBackend
from headway.storage.object_store.client_selection import open_store
from headway.storage.object_store.fsspec_client import FsspecClient
from headway.storage.object_store.upload import RankUpload, folder_key, inventory_at, send
from headway.storage.run import layout
from headway.testing.contracts.checkpoint_backend import CheckpointBackendContract
from s3 import S3


def signer() -> Signer:
    return Signer("run", user_key().for_run("run"))


def written(directory: Path, files: Mapping[str, bytes]) -> Path:
    """A new directory with these files, as reported by a user."""
    source = directory / secrets.token_hex(8)
    for name, data in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    return source


class TestLocal(CheckpointBackendContract):
    def make(self, directory: Path) -> CheckpointBackend:
        for name in (layout.CHECKPOINTS, layout.LOGS):
            (directory / name).mkdir(parents=True)
        self.root = directory
        return self.backend_of(directory)

    def backend_of(self, directory: Path) -> CheckpointBackend:
        return LocalCheckpointBackend(directory, signer())

    def stage(
        self, backend: CheckpointBackend, attempt: int, seq: int, rank: int, files: Mapping[str, bytes], name: str
    ) -> None:
        source = written(self.root.parent, files)
        stage(source, Slot(self.root, attempt, seq, rank), Note(2, {}), user_key().for_run("run"))

    @contextlib.contextmanager
    def interrupted(self, backend: CheckpointBackend) -> Iterator[None]:
        def refuse(source: Path, target: Path) -> None:
            if target.parent.name == layout.CHECKPOINTS:
                raise OSError("the process has died before the rename")
            move(source, target)

        move = durable_fs.move
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(durable_fs, "move", refuse)
            yield

    def damage(self, backend: CheckpointBackend, saved: SavedCheckpoint, file: str, data: bytes) -> None:
        path = Path(saved.path, file)
        path.chmod(0o600)
        path.write_bytes(data)


class InStore(CheckpointBackendContract):
    """The common part of the tests of backends in object stores."""

    store: ObjectStore

    def make(self, directory: Path) -> CheckpointBackend:
        directory.mkdir()
        self.root = directory
        self.store = self.new_store(directory)
        return self.backend_of(self.store)

    def new_store(self, directory: Path) -> ObjectStore:
        raise NotImplementedError

    def backend_of(self, store: ObjectStore) -> CheckpointBackend:
        return ObjectStoreCheckpointBackend(store, signer=signer())

    def stage(
        self, backend: CheckpointBackend, attempt: int, seq: int, rank: int, files: Mapping[str, bytes], name: str
    ) -> None:
        source, key, names = written(self.root, files), user_key().for_run("run"), frozenset(files)
        given = inventory_at(source)
        send(RankUpload(self.store, attempt, seq, rank, source, name, given, tuple(files), names, key), Note(2, {}))

    @contextlib.contextmanager
    def interrupted(self, backend: CheckpointBackend) -> Iterator[None]:
        def refuse(self: ObjectStore, key: str, data: bytes) -> None:
            if key == layout.MANIFEST:
                raise StorageError("the process has died before the manifest")
            put(self, key, data)

        kind = type(self.store)
        put = kind.put
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, "put", refuse)
            yield

    def damage(self, backend: CheckpointBackend, saved: SavedCheckpoint, file: str, data: bytes) -> None:
        self.store.at(folder_key(saved.manifest.name)).put(file, data)


class TestObstoreOnS3(InStore):
    @pytest.fixture(autouse=True)
    def _server(self, s3: S3) -> None:
        self.url = s3.url

    def new_store(self, directory: Path) -> ObjectStore:
        return open_store(f"{self.url}/contract/{secrets.token_hex(8)}")


class TestFsspecInMemory(InStore):
    def new_store(self, directory: Path) -> ObjectStore:
        return open_store(f"memory://contract-{secrets.token_hex(8)}")


class TestFsspecOnDisk(InStore):
    def new_store(self, directory: Path) -> ObjectStore:
        import fsspec

        (directory / "store").mkdir()
        return FsspecClient(fsspec.filesystem("file"), str(directory / "store"))


# --- backends that are broken on purpose ---


class VisibleBeforeWhole(LocalCheckpointBackend):
    """Shows checkpoints before their commit."""

    def survey(self) -> Survey:
        staged = [path for path in layout.staging(self.root).glob("*.rank-*") if path.is_dir()]
        found = super().survey()
        if not staged:
            return found
        manifest = CommitRequest(number=0, seq=0, attempt=1, world_size=2, ranks=(0,), metrics={}).manifest(None, {})
        return replace(found, kept=[*found.kept, SavedCheckpoint(staged[0], manifest)])


class WithoutChecksums(LocalCheckpointBackend):
    def commit(self, what: CommitRequest) -> SavedCheckpoint:
        saved = super().commit(what)
        files = {name: replace(stored, sha256="") for name, stored in saved.manifest.files.items()}
        bare = replace(saved, manifest=replace(saved.manifest, files=files))
        write_manifest(Path(saved.path), bare.manifest)
        return bare


class CommitsWhatIsThere(LocalCheckpointBackend):
    """Commits a checkpoint even if the files of some ranks are missing."""

    def commit(self, what: CommitRequest) -> SavedCheckpoint:
        present = tuple(rank for rank in what.ranks if Slot(self.root, what.attempt, what.seq, rank).folder.is_dir())
        return super().commit(replace(what, ranks=present))


class DiscardsTheManifestOnly(LocalCheckpointBackend):
    def discard(self, path: PurePath) -> None:
        Path(path, layout.MANIFEST).unlink()


class VerifiesSizesOnly(LocalCheckpointBackend):
    def verify(self, name: str) -> tuple[Manifest, list[str]]:
        folder = self.root / layout.CHECKPOINTS / name
        manifest = read_manifest(folder)
        return manifest, list(damage(folder, manifest, contents=False))


class ForgetsValidations(LocalCheckpointBackend):
    def note_validation(self, path: PurePath, validation: ValidationRecord) -> None:
        pass


def failures_of(kind: Callable[[Path, Signer], LocalCheckpointBackend], tmp_path: Path) -> set[str]:
    """The names of the tests of the contract that this backend does not pass."""

    class Contract(TestLocal):
        def backend_of(self, directory: Path) -> CheckpointBackend:
            return kind(directory, signer())

    failed = set()
    for name in (name for name in vars(CheckpointBackendContract) if name.startswith("test_")):
        contract = Contract()
        backend = contract.make(tmp_path / name / "run")
        with_path = name == "test_a_commit_makes_a_checkpoint_of_staged_files"
        try:
            getattr(contract, name)(backend, tmp_path / name) if with_path else getattr(contract, name)(backend)
        except (Exception, pytest.fail.Exception):
            failed.add(name)
    return failed


def test_the_local_backend_passes(tmp_path: Path) -> None:
    assert failures_of(LocalCheckpointBackend, tmp_path) == set()


@pytest.mark.parametrize(
    ("backend", "failed"),
    [
        (
            VisibleBeforeWhole,
            {
                "test_staged_files_are_no_checkpoint",
                "test_what_is_cut_off_before_the_end_of_a_commit_is_no_checkpoint",
                "test_a_commit_without_the_files_of_a_rank_fails_and_leaves_nothing",
            },
        ),
        (
            WithoutChecksums,
            {
                "test_every_file_of_a_manifest_has_a_checksum",
                "test_changed_contents_are_found",
                "test_recovery_keeps_every_checkpoint",
                "test_recovery_after_a_crash_offers_no_damaged_checkpoint",
            },
        ),
        (
            CommitsWhatIsThere,
            {
                "test_a_commit_without_the_files_of_a_rank_fails_and_leaves_nothing",
                "test_a_sweep_takes_what_an_attempt_has_left_and_no_checkpoint",
                "test_files_that_are_cleared_do_not_come_back",
            },
        ),
        (DiscardsTheManifestOnly, {"test_a_discarded_checkpoint_is_gone"}),
        (VerifiesSizesOnly, {"test_changed_contents_are_found"}),
        (ForgetsValidations, {"test_a_validation_is_noted_beside_its_checkpoint"}),
    ],
)
def test_a_broken_backend_fails_the_contract(
    backend: type[LocalCheckpointBackend], failed: set[str], tmp_path: Path
) -> None:
    assert failures_of(backend, tmp_path) == failed
