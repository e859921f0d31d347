"""The user-facing checkpoint: a reference to a directory of files, or a dict that will be written to one."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from headway.core.errors import ConfigError, StorageError
from headway.core.security.signing import Key
from headway.storage.checkpoint.dict_files import pickles_of, read_dict
from headway.storage.checkpoint.file_sources import (
    CheckpointLocation,
    DirectoryLocation,
    StoreLocation,
    location_of,
    location_of_dict,
)
from headway.storage.checkpoint.signatures import Proof, proof_of, trusted
from headway.storage.object_store.base import ObjectStore


@dataclass(frozen=True)
class _Origin:
    """Which code provides a checkpoint.

    Args:
        trusted: Whether its pickles may be opened without proof of origin.
        key: Key of the run, if that is not this user's own. It is not pickled.
    """

    trusted: bool = False
    key: Key | None = None

    def __reduce__(self) -> tuple[type[_Origin], tuple[bool]]:
        return _Origin, (self.trusted,)


class Checkpoint:
    """A reference to a directory of files, or a dict in memory.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "model.txt").write_text("weights")
    ...     with Checkpoint.from_directory(folder).as_directory() as path:
    ...         print(Path(path, "model.txt").read_text())
    weights
    >>> Checkpoint.from_dict({"epoch": 3, "weights": (1.5, 2.5)}).to_dict()
    {'epoch': 3, 'weights': (1.5, 2.5)}
    """

    _origin = _Origin()

    def __init__(self, path: str | os.PathLike[str], filesystem: Any = None) -> None:
        """``path`` may be a URI (``s3://bucket/runs/a/checkpoints/checkpoint_000003``), or a path on ``filesystem``."""
        self._location: CheckpointLocation = location_of(path, filesystem)
        self.path = self._location.path

    @classmethod
    def of(cls, place: ObjectStore | str, *, trust: bool = False, key: Key | None = None) -> Self:
        """A checkpoint of a run.

        Args:
            place: Its directory, or a store rooted at it.
            trust: Its pickles may be opened without proof of origin.
            key: The key of the run that provides it.
        """
        made = _at(cls, DirectoryLocation(os.path.abspath(place)) if isinstance(place, str) else StoreLocation(place))
        made._origin = _Origin(trust, key)
        return made

    def proven_by(self, key: Key, *, trust: bool = False) -> Self:
        """The same checkpoint, provided by the run with this key."""
        self._origin = _Origin(self._origin.trusted or trust, key)
        return self

    @property
    def filesystem(self) -> Any:
        """The pyarrow filesystem of ``path``."""
        return self._location.filesystem

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Self:
        """A checkpoint of the files in a directory."""
        return cls(path)

    @classmethod
    def from_checkpoint(cls, other: Checkpoint) -> Self:
        """The same checkpoint as an object of this class."""
        made = _at(cls, other._location)
        made._origin = other._origin
        return made

    @classmethod
    def from_dict(cls, data: Mapping[Any, Any]) -> Self:
        """A checkpoint of tensors, arrays and plain values. It stays in memory until it is reported or written."""
        return _at(cls, location_of_dict(data))

    def to_dict(self, trust: bool = False) -> dict[Any, Any]:
        """The dict that this checkpoint was made of; its tensors are on the CPU.

        Args:
            trust: Open pickled values although it is not proven that your own runs wrote them. Pickles can run any
                code.
        """
        kind, data = self._location.representation
        if kind == "data_dict":
            return copy.copy(data)
        with self.as_directory() as folder:
            return read_dict(Path(folder), trusted(Path(folder)) if trust else self.proof(Path(folder)))

    def proof(self, folder: Path) -> Proof:
        """The proof of origin of its files, which :meth:`as_directory` has put into ``folder``."""
        if self._origin.trusted:
            return trusted(folder)
        return proof_of(folder, self._location.manifest(), self._origin.key)

    def own_pickles(self) -> dict[str, str] | None:
        """The checksums of its pickles that a run may sign as its own if it reports these files.

        They are proven by the checkpoint's manifest, or signed as part of a dict. A signature for others would prove
        the origin of code that the run has only copied.

        Returns:
            The checksums by relative path; None for a checkpoint that another user has committed.
        """
        with contextlib.suppress(StorageError):
            if not self._location.may_have_pickles():
                return {}
            with self.as_directory() as folder:
                proof = self.proof(Path(folder))
                committed_by_others = bool(proof.doubt) and self._location.manifest() is not None
                return None if committed_by_others else pickles_of(Path(folder), proof)
        return None

    def as_directory(self) -> AbstractContextManager[str]:
        """The directory of the files, for reading: itself, not a copy. The files stay until the context ends.

        Files in an object store are downloaded once for all processes of this machine that read them now, and verified
        by their checksums.
        """
        return self._location.directory()

    def kept_here(self) -> AbstractContextManager[None]:
        """Keep downloaded files on this machine until the context ends, also for processes that start later."""
        return self._location.kept_here()

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files to ``path``, or to a new temporary directory, and return its path."""
        target = Path(path).expanduser() if path is not None else Path(tempfile.mkdtemp(prefix="checkpoint_"))
        self._location.copy_to(target)
        return str(target)

    def get_internal_representation(self) -> tuple[str, Any]:
        """``("local_path", path)``, ``("uri", url)``, or ``("data_dict", data)`` for a dict in memory."""
        return self._location.representation

    # --- metadata: in a file beside the manifest ---

    def get_metadata(self) -> dict[str, Any]:
        """The metadata of :meth:`set_metadata`."""
        return self._location.metadata()

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata by any values that JSON can hold."""
        try:
            self._location.write_metadata(metadata)
        except TypeError as error:
            raise ConfigError(f"metadata must be serializable as JSON: {error}") from None

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add to the metadata."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Checkpoint) or not self._location.name or not other._location.name:
            return self is other
        return other._location.name == self._location.name

    def __hash__(self) -> int:
        return hash(self._location.name)

    def __repr__(self) -> str:
        kind, data = self._location.representation
        if kind == "data_dict":
            return f"Checkpoint.from_dict(<{len(data)} keys>)"
        return f"Checkpoint({self._location.name!r})"


_Kind = TypeVar("_Kind", bound=Checkpoint)


def _at(kind: type[_Kind], location: CheckpointLocation) -> _Kind:
    """A checkpoint of class ``kind`` whose files are at this location."""
    made = kind("")
    made._location, made.path = location, location.path
    return made
