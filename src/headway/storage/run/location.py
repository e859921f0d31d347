"""Locations of runs: a directory or an object-store prefix, and everything that differs between the two.

RunReader ──▶ RunLocation ◁── DirectoryRunLocation, StoreRunLocation
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headway.core.config import Resume
from headway.storage.checkpoint.backend import CheckpointBackend, LocalCheckpointBackend
from headway.storage.object_store import lease
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.checkpoint_backend import ObjectStoreCheckpointBackend
from headway.storage.object_store.log_mirror import fetch_failures, fetch_growing_logs
from headway.storage.run.lock import is_open
from headway.storage.run.opening import open_remote_run, open_run
from headway.storage.run.removal import check_removable, foreign_entries, remove_remote_run, remove_run
from headway.storage.run.run_directory import RunDirectory


class RunLocation(Protocol):
    """Where a run is stored. Can be pickled."""

    @property
    def url(self) -> str:
        """The path or URI of the run, for messages."""

    @property
    def path(self) -> str:
        """Its path on ``filesystem``."""

    @property
    def filesystem(self) -> Any:
        """The pyarrow filesystem of ``path``."""

    @property
    def backend(self) -> CheckpointBackend:
        """Its checkpoint backend, for reading."""

    @property
    def log_poll_s(self) -> float:
        """Interval for polling growing logs."""

    def is_open(self) -> bool:
        """Whether a controller has the run open."""

    def fetch_logs(self, home: Path) -> None:
        """Fetch the current logs of its ranks to ``home``, a copy of the run on this machine."""

    def fetch_failures(self, home: Path) -> None:
        """Fetch the summaries of its failures to ``home``."""

    def open(self, resume: Resume) -> RunDirectory:
        """Open the run for writing."""

    def check_removable(self) -> None:
        """StorageError unless it is exactly one run."""

    def remove(self) -> None:
        """Remove the run with all its files."""

    def foreign_entries(self) -> list[str]:
        """Names of entries that the run itself has not written."""

    def num_bytes(self) -> int:
        """The total size of its files."""


@dataclass(frozen=True)
class DirectoryRunLocation:
    """A run in a local directory."""

    directory: Path

    @property
    def url(self) -> str:
        return self.backend.url

    @property
    def path(self) -> str:
        return str(self.directory)

    @property
    def filesystem(self) -> Any:
        import pyarrow.fs

        return pyarrow.fs.LocalFileSystem()

    @property
    def backend(self) -> LocalCheckpointBackend:
        return LocalCheckpointBackend(self.directory)

    @property
    def log_poll_s(self) -> float:
        return 0.2

    def is_open(self) -> bool:
        return is_open(self.directory)

    def fetch_logs(self, home: Path) -> None:
        """No effect: local logs are read in place."""

    def fetch_failures(self, home: Path) -> None:
        """No effect: local failures are read in place."""

    def open(self, resume: Resume) -> RunDirectory:
        return open_run(self.directory, resume)

    def check_removable(self) -> None:
        check_removable(self.directory)

    def remove(self) -> None:
        remove_run(self.directory)

    def foreign_entries(self) -> list[str]:
        return foreign_entries(self.directory)

    def num_bytes(self) -> int:
        found = (Path(base, name) for base, _, names in os.walk(self.directory) for name in names)
        return sum(path.lstat().st_size for path in found)


@dataclass(frozen=True)
class StoreRunLocation:
    """A run in an object store; ``store`` is rooted at the run."""

    store: ObjectStore

    @property
    def url(self) -> str:
        return self.store.url

    @property
    def path(self) -> str:
        return self.store.path

    @property
    def filesystem(self) -> Any:
        return self.store.filesystem

    @property
    def backend(self) -> ObjectStoreCheckpointBackend:
        return ObjectStoreCheckpointBackend(self.store)

    @property
    def log_poll_s(self) -> float:
        return 3.0  # logs in a store are a few seconds old anyway

    def is_open(self) -> bool:
        return lease.is_held(self.store)

    def fetch_logs(self, home: Path) -> None:
        fetch_growing_logs(self.store, home)

    def fetch_failures(self, home: Path) -> None:
        fetch_failures(self.store, home)

    def open(self, resume: Resume) -> RunDirectory:
        return open_remote_run(self.store, resume)

    def check_removable(self) -> None:
        """No effect: :meth:`remove` checks it."""

    def remove(self) -> None:
        remove_remote_run(self.store)

    def foreign_entries(self) -> list[str]:
        return []

    def num_bytes(self) -> int:
        return sum(self.store.sizes().values())
