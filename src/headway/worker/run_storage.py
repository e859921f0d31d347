"""The run's storage as its workers see it: a directory, or an object store plus a local directory."""

from __future__ import annotations

import functools
import socket
from pathlib import Path, PurePath

import cloudpickle

from headway.core.errors import StorageError
from headway.core.messages import RunInfo
from headway.core.security.signing import Key
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.staging import lock_identity
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.upload import folder_key
from headway.storage.run import layout


class RunStorage:
    """The storage of a run. The object store is opened at first use, when the process has the driver's environment."""

    def __init__(self, run: RunInfo) -> None:
        self._run = run
        self.path = Path(run.path)
        self.root = Path(run.root or run.path)  # where checkpoints are staged
        self.lock = lock_identity(self.root)  # detects whether a different run's directory replaces it later
        self.key = Key(run.key)

    @functools.cached_property
    def store(self) -> ObjectStore | None:
        """The object store of the run, rooted at the run; None for a run in a directory."""
        store: ObjectStore | None = cloudpickle.loads(self._run.store) if self._run.store else None
        return store

    def check_visible(self, rank: int) -> None:
        """Raise StorageError unless this process sees the run's storage, as proven by the run's id in ``run.json``."""
        try:
            if self.store is not None:
                description = self.store.read(layout.DESCRIPTION)
            else:
                description = (self.path / layout.DESCRIPTION).read_bytes()
        except FileNotFoundError:
            description = b""
        if self._run.id.encode() not in description:
            where = self.store.url if self.store is not None else self.path
            raise StorageError(
                f"rank {rank} on {socket.gethostname()} does not see the run at {where}: "
                "choose a storage_path that every machine sees, a shared directory or an object store"
            )

    def checkpoint(self, path: str) -> Checkpoint:
        """Return a committed checkpoint of this run, given the controller's path of it."""
        place = path if self.store is None else self.store.at(folder_key(PurePath(path).name))
        return Checkpoint.of(place, trust=self._run.trust, key=self.key)
