"""What users hold in their hands: a folder of files, or a dict that will become one."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from headway.core.errors import ConfigError, StorageError
from headway.storage import disk, layout
from headway.storage.dicts import read_dict, write_dict
from headway.storage.files import read_json, write_json


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
    _trusted = False  # whether it was handed out by the run that wrote it

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Self:
        return cls(path)

    @classmethod
    def from_checkpoint(cls, other: Checkpoint) -> Self:
        """The same checkpoint as an object of this class."""
        made = cls(other.path)
        made.path, made._data, made._trusted = other.path, other._data, other._trusted
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

        What only pickle can hold is opened if this checkpoint was handed out by the run that wrote it, or on
        ``trust``: pickles run code.
        """
        if self._data is not None:
            return copy.copy(self._data)
        with self._held():
            return read_dict(Path(self.path), trust=trust or self._trusted)

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """The files, to read: the folder itself, not a copy. As long as you are in here, nobody takes them away."""
        if self._data is None:
            with self._held():
                yield self.path
        else:
            with tempfile.TemporaryDirectory(prefix="checkpoint_") as folder:
                write_dict(Path(folder), self._data)
                yield folder

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files to ``path``, or to a new temporary folder, and say where they are."""
        target = Path(path) if path is not None else Path(tempfile.mkdtemp(prefix="checkpoint_"))
        if self._data is not None:
            target.mkdir(parents=True, exist_ok=True)
            write_dict(target, self._data)
        else:
            with self._held():
                ours = shutil.ignore_patterns(layout.MANIFEST, layout.VALIDATION)
                shutil.copytree(self.path, target, dirs_exist_ok=True, ignore=ours)
        return str(target)

    def get_internal_representation(self) -> tuple[str, Any]:
        """``("local_path", path)``, or ``("data_dict", data)`` for a dict that was not written yet."""
        return ("local_path", self.path) if self._data is None else ("data_dict", self._data)

    # --- what is known about it: beside its files, and never in its manifest ---

    def get_metadata(self) -> dict[str, Any]:
        path = Path(self.path, layout.METADATA)
        found: dict[str, Any] = read_json(path) if self._data is None and path.is_file() else {}
        return found

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace what is known about it; anything that JSON can hold."""
        if self._data is not None:
            raise StorageError("a dict that was not written yet has no place for metadata: put it into the dict")
        self._check()
        try:
            write_json(Path(self.path, layout.METADATA), dict(metadata))
        except TypeError as error:
            raise ConfigError(f"metadata must be something that JSON can hold: {error}") from None

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        self.set_metadata({**self.get_metadata(), **metadata})

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        self._check()
        with disk.shared(Path(self.path)):
            yield

    def _check(self) -> None:
        if not os.path.isdir(self.path):
            raise StorageError(f"checkpoint {self.path} is not there (deleted, or a path of another machine?)")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Checkpoint) or self._data is not None or other._data is not None:
            return self is other
        return other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"Checkpoint({self.path!r})" if self._data is None else f"Checkpoint.from_dict(<{len(self._data)} keys>)"


def trusted(path: str | os.PathLike[str]) -> Checkpoint:
    """A checkpoint that is handed out by the run that wrote it."""
    checkpoint = Checkpoint(path)
    checkpoint._trusted = True
    return checkpoint
