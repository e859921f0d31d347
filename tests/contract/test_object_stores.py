"""Tests of every object store client against the contract of stores; broken stores must fail it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headway.storage.checkpoint.manifest import checksum
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.client_selection import open_store
from headway.storage.object_store.fsspec_client import FsspecClient, as_fsspec
from headway.testing.contracts.object_store import ObjectStoreContract
from s3 import S3


class TestObstoreOnS3(ObjectStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, s3: S3) -> None:
        self.url = s3.url

    def make(self, directory: Path) -> ObjectStore:
        return open_store(f"{self.url}/contract/{secrets.token_hex(8)}")


class TestFsspecInMemory(ObjectStoreContract):
    creates_atomically = False

    def make(self, directory: Path) -> ObjectStore:
        return open_store(f"memory://contract-{secrets.token_hex(8)}")


class TestFsspecOnDisk(ObjectStoreContract):
    creates_atomically = False

    def make(self, directory: Path) -> ObjectStore:
        import fsspec

        directory.mkdir()
        return FsspecClient(fsspec.filesystem("file"), str(directory))


class TestPyarrowOnDisk(ObjectStoreContract):
    creates_atomically = False

    def make(self, directory: Path) -> ObjectStore:
        import pyarrow.fs

        directory.mkdir()
        return FsspecClient(as_fsspec(pyarrow.fs.LocalFileSystem()), str(directory))


# --- stores that are broken on purpose ---


@dataclass(frozen=True)
class DictStore:
    """A correct store, in the memory of this process."""

    objects: dict[str, bytes] = field(default_factory=dict)
    prefix: str = ""

    @property
    def url(self) -> str:
        return f"dict://store/{self.prefix}".rstrip("/")

    @property
    def path(self) -> str:
        return self.prefix

    @property
    def identity(self) -> str:
        return self.url

    @property
    def filesystem(self) -> Any:
        raise NotImplementedError

    def at(self, folder: str) -> DictStore:
        return type(self)(self.objects, f"{self.prefix}{folder}/")

    def up(self, levels: int) -> DictStore:
        parts = self.prefix.rstrip("/").split("/")[:-levels]
        return type(self)(self.objects, "".join(f"{part}/" for part in parts))

    def put(self, key: str, data: bytes) -> None:
        self.objects[self.prefix + key] = data

    def create(self, key: str, data: bytes) -> bool:
        return self.objects.setdefault(self.prefix + key, data) is data

    def upload(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes())

    def read(self, key: str) -> bytes:
        try:
            return self.objects[self.prefix + key]
        except KeyError:
            raise FileNotFoundError(key) from None

    def download(self, key: str, path: Path, size: int) -> str:
        path.write_bytes(self.read(key))
        return checksum(path)

    def checksum(self, key: str, size: int) -> str:
        return hashlib.sha256(self.read(key)).hexdigest()

    def sizes(self, folder: str = "") -> dict[str, int]:
        begin = f"{self.prefix}{folder}/" if folder else self.prefix
        return {key[len(self.prefix) :]: len(data) for key, data in self.objects.items() if key.startswith(begin)}

    def delete(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            self.objects.pop(self.prefix + key, None)


class CreatesAlways(DictStore):
    def create(self, key: str, data: bytes) -> bool:
        self.put(key, data)
        return True


class ListsNeighbours(DictStore):
    def sizes(self, folder: str = "") -> dict[str, int]:
        begin = self.prefix + folder
        return {key[len(self.prefix) :]: len(data) for key, data in self.objects.items() if key.startswith(begin)}


class TruncatesUploads(DictStore):
    def upload(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes()[: 16 << 20])


class RaisesKeyErrors(DictStore):
    def read(self, key: str) -> bytes:
        return self.objects[self.prefix + key]


class FailsToDeleteTheMissing(DictStore):
    def delete(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            del self.objects[self.prefix + key]


class OneForAll(DictStore):
    @property
    def identity(self) -> str:
        return "store"


def failures_of(kind: Callable[[], ObjectStore], tmp_path: Path) -> set[str]:
    """The names of the tests of the contract that this store fails."""

    class Contract(ObjectStoreContract):
        def make(self, directory: Path) -> ObjectStore:
            return kind()

    calls: dict[str, Callable[[Contract, ObjectStore, Path], None]] = {
        "test_what_is_put_is_read": lambda it, store, path: it.test_what_is_put_is_read(store, "a/b"),
        "test_a_file_survives_the_way_there_and_back": lambda it, store, path: (
            it.test_a_file_survives_the_way_there_and_back(store, path, bytes(20 << 20))
        ),
        "test_a_missing_key_is_a_file_that_is_not_found": lambda it, store, path: (
            it.test_a_missing_key_is_a_file_that_is_not_found(store, path)
        ),
    }
    for name in vars(ObjectStoreContract):
        if name.startswith("test_") and name not in calls:
            calls[name] = lambda it, store, path, name=name: getattr(it, name)(store)  # type: ignore[misc]
    failed = set()
    for name, call in calls.items():
        (tmp_path / name).mkdir()
        try:
            call(Contract(), kind(), tmp_path / name)
        except (Exception, pytest.fail.Exception):
            failed.add(name)
    return failed


def test_a_store_that_works_passes(tmp_path: Path) -> None:
    assert failures_of(DictStore, tmp_path) == set()


@pytest.mark.parametrize(
    ("store", "failed"),
    [
        (CreatesAlways, {"test_only_the_first_creates_a_key", "test_at_most_one_of_many_at_once_creates_a_key"}),
        (ListsNeighbours, {"test_keys_are_listed_below_a_directory_only"}),
        (TruncatesUploads, {"test_a_file_survives_the_way_there_and_back"}),
        (
            RaisesKeyErrors,
            {"test_a_missing_key_is_a_file_that_is_not_found", "test_deleted_keys_are_gone_and_others_stay"},
        ),
        (FailsToDeleteTheMissing, {"test_deleted_keys_are_gone_and_others_stay"}),
        (OneForAll, {"test_places_differ_in_url_and_identity"}),
    ],
)
def test_a_broken_store_fails_the_contract(store: type[DictStore], failed: set[str], tmp_path: Path) -> None:
    assert failures_of(store, tmp_path) == failed
