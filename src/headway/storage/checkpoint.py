"""What users hold in their hands: a reference to a folder of files."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from headway.core.errors import StorageError
from headway.storage import layout


class Checkpoint:
    """A reference to a folder of files.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "model.txt").write_text("weights")
    ...     with Checkpoint.from_directory(folder).as_directory() as path:
    ...         print(Path(path, "model.txt").read_text())
    weights
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        return cls(path)

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """The files, to read: the folder itself, not a copy."""
        self._check()
        yield self.path

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files to ``path``, or to a new temporary folder, and say where they are."""
        self._check()
        target = Path(path) if path is not None else Path(tempfile.mkdtemp(prefix="checkpoint_"))
        shutil.copytree(self.path, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(layout.MANIFEST))
        return str(target)

    def _check(self) -> None:
        if not os.path.isdir(self.path):
            raise StorageError(f"checkpoint {self.path} is not there (deleted, or a path of another machine?)")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"Checkpoint({self.path!r})"
