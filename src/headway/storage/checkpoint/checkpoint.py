"""What users hold in their hands: a folder of files, or a dict that will become one."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from headway.core.checkpoints import Manifest
from headway.core.config import local_path, scheme_of
from headway.core.errors import ConfigError, StorageError
from headway.core.security.signing import Key
from headway.storage import durable_fs
from headway.storage.checkpoint.dict_files import foreign_pickles, read_dict, write_dict
from headway.storage.checkpoint.manifest import parse_manifest, read_manifest
from headway.storage.checkpoint.signatures import Proof, proof_of, trusted
from headway.storage.fs_ops import copy_tree, json_bytes, parse_json, read_json, write_json
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.download_cache import copy_of, held
from headway.storage.object_store.uri import is_remote, open_store
from headway.storage.object_store.verify import contents_of, fetch
from headway.storage.run import layout


class Checkpoint:
    """A reference to a folder of files, or a dict in memory.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "model.txt").write_text("weights")
    ...     with Checkpoint.from_directory(folder).as_directory() as path:
    ...         print(Path(path, "model.txt").read_text())
    weights
    >>> Checkpoint.from_dict({"epoch": 3, "weights": (1.5, 2.5)}).to_dict()
    {'epoch': 3, 'weights': (1.5, 2.5)}
    """

    _data: dict[Any, Any] | None = None
    _store: ObjectStore | None = None  # where its files are, if not in a folder here
    _trusted = False  # whether its pickles may be opened whoever wrote them
    _key: Key | None = None  # of the run that hands it out, if that is not this user's own

    def __init__(self, path: str | os.PathLike[str], filesystem: Any = None) -> None:
        """``path`` may be an address (``s3://bucket/runs/a/checkpoints/checkpoint_000003``), or on a filesystem."""
        if is_remote(path, filesystem):
            self._store = open_store(path, filesystem)
            self.path = self._store.path
        else:
            named = local_path(path) if scheme_of(os.fspath(path)) else os.path.expanduser(os.fspath(path))
            self.path = os.path.abspath(named)

    @classmethod
    def of(cls, place: ObjectStore | str, *, trust: bool = False, key: Key | None = None) -> Self:
        """A checkpoint of a run.

        Args:
            place: Its directory, or where it is in a store.
            trust: Its pickles may be opened, whoever wrote them.
            key: The key of the run that hands it out.
        """
        made = cls(place if isinstance(place, str) else "")
        if not isinstance(place, str):
            made.path, made._store = place.path, place
        made._trusted, made._key = trust, key
        return made

    def proven_by(self, key: Key, *, trust: bool = False) -> Self:
        """The same checkpoint in the hands of the run that has this key, which does not travel with it."""
        self._key, self._trusted = key, self._trusted or trust
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_key"}

    @property
    def filesystem(self) -> Any:
        """A pyarrow filesystem on which ``path`` is where the files are."""
        import pyarrow.fs

        return pyarrow.fs.LocalFileSystem() if self._store is None else self._store.filesystem

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Self:
        return cls(path)

    @classmethod
    def from_checkpoint(cls, other: Checkpoint) -> Self:
        """The same checkpoint as an object of this class."""
        made = cls(other.path)
        made.path, made._store, made._data = other.path, other._store, other._data
        made._trusted, made._key = other._trusted, other._key
        return made

    @classmethod
    def from_dict(cls, data: Mapping[Any, Any]) -> Self:
        """A checkpoint of tensors, arrays and plain values. Kept in memory until it is reported or written."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"Checkpoint.from_dict takes a dict, got {type(data).__name__}")
        made = cls("")
        made.path = ""
        made._data = dict(data)
        return made

    def to_dict(self, trust: bool = False) -> dict[Any, Any]:
        """The dict that this was made of; its tensors are on the CPU.

        What only pickle can hold is opened if it is proven that your own runs wrote it, or on ``trust``: pickles run
        code.
        """
        if self._data is not None:
            return copy.copy(self._data)
        with self.as_directory() as folder:
            return read_dict(Path(folder), trusted(Path(folder)) if trust else self.proof(Path(folder)))

    def proof(self, folder: Path) -> Proof:
        """What is proven of its files, which :meth:`as_directory` has laid into ``folder``."""
        return trusted(folder) if self._trusted else proof_of(folder, self._manifest(), self._key)

    def may_be_signed(self) -> bool:
        """Whether a run that is given these files may say that it has written them.

        Not those of another user's checkpoint, nor a dict with pickles that this user's Headway has not written: a run
        that reports them would prove the origin of code that it has only copied.
        """
        if self._data is not None or (self._store is None and not os.path.isdir(self.path)):
            return True
        with contextlib.suppress(StorageError), self.as_directory() as folder:
            proof = self.proof(Path(folder))
            committed_by_others = bool(proof.doubt) and self._manifest() is not None
            return not committed_by_others and all(map(proof.covers_file, foreign_pickles(Path(folder))))
        return False

    def _manifest(self) -> Manifest | None:
        try:
            if self._store is None:
                return read_manifest(Path(self.path))
            return parse_manifest(f"{self._store.url}/{layout.MANIFEST}", self._store.read(layout.MANIFEST))
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """The files, to read: the folder itself, not a copy. As long as you are in here, nobody takes them away.

        What is in an object store is downloaded, once for all processes of this machine that read it now, and every
        byte of it compared with what was committed.
        """
        if self._store is not None:
            with copy_of(self._store) as copied:
                yield str(copied)
        elif self._data is None:
            with self._held():
                yield self.path
        else:
            with tempfile.TemporaryDirectory(prefix="checkpoint_") as folder:
                write_dict(Path(folder), self._data)
                yield folder

    @contextlib.contextmanager
    def kept_here(self) -> Iterator[None]:
        """Until then, who downloads it has done so for everybody on this machine, those who come later too."""
        if self._store is None:
            yield
        else:
            with held(self._store):
                yield

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files to ``path``, or to a new temporary folder, and say where they are."""
        target = Path(path).expanduser() if path is not None else Path(tempfile.mkdtemp(prefix="checkpoint_"))
        if self._data is not None:
            target.mkdir(parents=True, exist_ok=True)
            write_dict(target, self._data)
        elif self._store is not None:
            fetch(self._store, contents_of(self._store), target)
        else:
            with self._held():
                copy_tree(Path(self.path), target, leave_out=(layout.MANIFEST, layout.VALIDATION))
        return str(target)

    def get_internal_representation(self) -> tuple[str, Any]:
        """``("local_path", path)``, ``("uri", url)``, or ``("data_dict", data)`` for one that was not written yet."""
        if self._store is not None:
            return ("uri", self._store.url)
        return ("local_path", self.path) if self._data is None else ("data_dict", self._data)

    # --- what is known about it: beside its files, and never in its manifest ---

    def get_metadata(self) -> dict[str, Any]:
        path = Path(self.path, layout.METADATA)
        found: dict[str, Any] = {}
        if self._store is not None:
            with contextlib.suppress(FileNotFoundError):
                found = parse_json(f"{self._store.url}/{layout.METADATA}", self._store.read(layout.METADATA))
        elif self._data is None and path.is_file():
            found = read_json(path)
        return found

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace what is known about it; anything that JSON can hold."""
        if self._data is not None:
            raise StorageError("a dict that was not written yet has no place for metadata: put it into the dict")
        self._check()
        try:
            if self._store is not None:
                self._store.put(layout.METADATA, json_bytes(dict(metadata)))
            else:
                write_json(Path(self.path, layout.METADATA), dict(metadata))
        except TypeError as error:
            raise ConfigError(f"metadata must be something that JSON can hold: {error}") from None

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        self.set_metadata({**self.get_metadata(), **metadata})

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        self._check()
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(durable_fs.shared(Path(self.path)))
            except FileNotFoundError:  # it was taken away at this moment
                self._check()
                raise
            yield

    def _check(self) -> None:
        if self._store is None and not os.path.isdir(self.path):
            raise StorageError(f"checkpoint {self.path} is not there (deleted, or a path of another machine?)")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Checkpoint) or self._data is not None or other._data is not None:
            return self is other
        return other._where == self._where

    def __hash__(self) -> int:
        return hash(self._where)

    @property
    def _where(self) -> str:
        return self.path if self._store is None else self._store.url

    def __repr__(self) -> str:
        if self._data is not None:
            return f"Checkpoint.from_dict(<{len(self._data)} keys>)"
        return f"Checkpoint({self._where!r})"
