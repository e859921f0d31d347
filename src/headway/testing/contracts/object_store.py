"""The contract of an object store client, as tests: keys, conditional creation, listing, transfers.

    class TestMyStore(ObjectStoreContract):
        def make(self, directory):
            return MyStore(...)

``make`` returns an empty store. Clients for servers may leave ``directory`` unused.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from headway.storage.object_store.base import ObjectStore

LARGE = bytes(range(256)) * 80_000  # 20 MB: more than one part of an upload
NAMES = ("plain", "a/b/c.txt", "with space", "ümlaut/文", "50%", "a+b=c&d", "dots..and.dots", "x" * 200)


class ObjectStoreContract(ABC):
    """The tests. Subclass it in a test module, under a name that starts with ``Test``.

    ``creates_atomically`` is False for stores that have no atomic operation to create a key if it does not exist. In
    such a store, two drivers that open a run within milliseconds may both believe that they hold the run.
    """

    creates_atomically = True

    @abstractmethod
    def make(self, directory: Path) -> ObjectStore:
        """Return an empty store."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return self.make(tmp_path / "store")

    @pytest.mark.parametrize("name", NAMES)
    def test_what_is_put_is_read(self, store: ObjectStore, name: str) -> None:
        store.put(name, b"first")
        store.put(name, b"second")
        assert store.read(name) == b"second"
        assert store.sizes() == {name: 6}

    def test_an_empty_object_is_an_object(self, store: ObjectStore) -> None:
        store.put("empty", b"")
        assert store.read("empty") == b""
        assert store.sizes() == {"empty": 0}

    def test_a_missing_key_is_a_file_that_is_not_found(self, store: ObjectStore, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            store.read("none")
        with pytest.raises(FileNotFoundError):
            store.download("none", tmp_path / "file", 1)
        with pytest.raises(FileNotFoundError):
            store.checksum("none", 1)

    def test_only_the_first_creates_a_key(self, store: ObjectStore) -> None:
        assert store.create("lock", b"mine")
        assert not store.create("lock", b"yours")
        assert store.read("lock") == b"mine"
        store.delete(["lock"])
        assert store.create("lock", b"yours")
        assert store.read("lock") == b"yours"

    def test_at_most_one_of_many_at_once_creates_a_key(self, store: ObjectStore) -> None:
        created: list[int] = []
        begin = threading.Barrier(4)

        def contend(number: int) -> None:
            begin.wait()
            if store.create("lock", b"%d" % number):
                created.append(number)

        threads = [threading.Thread(target=contend, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not self.creates_atomically:
            return
        assert len(created) <= 1
        assert not created or store.read("lock") == b"%d" % created[0]

    @pytest.mark.parametrize("data", [b"", b"small", LARGE], ids=["empty", "small", "several parts"])
    def test_a_file_survives_the_way_there_and_back(self, store: ObjectStore, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "there").write_bytes(data)
        store.upload("folder/file", tmp_path / "there")
        assert store.sizes() == {"folder/file": len(data)}
        expected = hashlib.sha256(data).hexdigest()
        assert store.checksum("folder/file", len(data)) == expected
        assert store.download("folder/file", tmp_path / "back", len(data)) == expected
        assert (tmp_path / "back").read_bytes() == data

    def test_keys_are_listed_below_a_directory_only(self, store: ObjectStore) -> None:
        for key in ("run/a", "run/sub/b", "run-2/c", "d"):
            store.put(key, key.encode())
        assert store.sizes("run") == {"run/a": 5, "run/sub/b": 9}
        assert sorted(store.sizes()) == ["d", "run-2/c", "run/a", "run/sub/b"]
        assert store.sizes("none") == {}

    def test_a_list_is_complete_and_sees_every_change(self, store: ObjectStore) -> None:
        expected = {f"many/{number:04}": 1 for number in range(30)}
        for key in expected:
            store.put(key, b"x")
        assert store.sizes("many") == expected
        store.delete(["many/0000"])
        assert store.sizes("many").keys() == expected.keys() - {"many/0000"}

    def test_deleted_keys_are_gone_and_others_stay(self, store: ObjectStore) -> None:
        for key in ("a", "b", "c"):
            store.put(key, b"x")
        store.delete(["a", "c", "never there"])
        assert store.sizes() == {"b": 1}
        with pytest.raises(FileNotFoundError):
            store.read("a")
        store.delete([])

    def test_a_store_below_has_its_own_keys(self, store: ObjectStore) -> None:
        below = store.at("runs").at("mine")
        below.put("file", b"x")
        assert store.sizes() == {"runs/mine/file": 1}
        assert below.sizes() == {"file": 1}
        assert below.url == f"{store.url.rstrip('/')}/runs/mine"
        assert below.up(2).sizes() == store.sizes()

    def test_places_differ_in_url_and_identity(self, store: ObjectStore) -> None:
        assert len({store.url, store.at("a").url, store.at("b").url}) == 3
        assert len({store.identity, store.at("a").identity, store.at("b").identity}) == 3
        assert store.at("a").identity == store.at("a").identity

    def test_a_store_travels_to_another_process(self, store: ObjectStore) -> None:
        store.put("file", b"x")
        again: ObjectStore = pickle.loads(pickle.dumps(store))
        assert again.read("file") == b"x"
        assert again.identity == store.identity
