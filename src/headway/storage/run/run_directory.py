"""The run directory that a controller has open and locked. No other process writes to it."""

from __future__ import annotations

import atexit
import fcntl
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from headway.core.checkpoints import Manifest
from headway.core.environment import memory_folder
from headway.core.process.temp_directories import OwnedDirectory
from headway.core.schema.data_stats import DataStatsLine
from headway.core.schema.journal_entries import JournalEntry
from headway.core.schema.run_description import DatasetDescription, Opening, RunDescription
from headway.core.schema.shape import printable
from headway.storage import durable_fs
from headway.storage.checkpoint.backend import CheckpointBackend, LocalCheckpointBackend
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.commit import Signer
from headway.storage.checkpoint.manifest import flush_files, versions, write_manifest
from headway.storage.checkpoint.recovery import Recovered
from headway.storage.fs_ops import write_json
from headway.storage.jsonl import Appender
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.log_mirror import Mirror
from headway.storage.run import layout
from headway.storage.run.journal import line_of

_LONGEST = 500  # characters of the changes in one config


class RunDirectory:
    """A run's directory during one ``fit()``. ``past_attempts`` is the highest attempt number before this opening."""

    def __init__(
        self,
        path: Path,
        lock: TextIO,
        description: RunDescription,
        past_attempts: int,
        recovered: Recovered,
        backend: CheckpointBackend,
        signer: Signer,
        mirror: Mirror | None = None,
        store: ObjectStore | None = None,
    ) -> None:
        self.path = path
        self.durable_backend = backend  # holds the checkpoints that outlive this process
        self.backend = backend  # commits new checkpoints
        self.memory: LocalCheckpointBackend | None = None  # set if checkpoints are kept in memory only
        self.durable_store = store
        self.complaint: str | None = None  # an error of close()
        self.recovered = recovered
        self.key = signer.key
        self._signer = signer
        self._mirror = mirror
        self.id = description.id
        self.seed = description.seed
        self.past_attempts = past_attempts
        self._lock = lock
        self._description = description
        self._journal = Appender(path / layout.JOURNAL)
        self._metrics = Appender(path / layout.METRICS)
        place = path / layout.DATA  # most runs have no datasets
        self._data = Appender(place) if os.path.lexists(place) else None

    @property
    def resumed(self) -> bool:
        return bool(self._description.openings[1:])

    @property
    def url(self) -> str:
        """The path or URI of the run, for messages."""
        return self.durable_backend.url

    @property
    def store(self) -> ObjectStore | None:
        """The object store that new checkpoints go to; None if they go to a directory."""
        return self.durable_store if self.memory is None else None

    @property
    def root(self) -> Path:
        """The local directory for new checkpoints, or for files that will be uploaded."""
        return self.path if self.memory is None else self.memory.root

    def keep_checkpoints_in_memory(self) -> None:
        """Commit new checkpoints in shared memory, which is removed when this process exits."""
        directory = OwnedDirectory("checkpoints", memory_folder())
        (directory.path / layout.CHECKPOINTS).mkdir()
        self.backend = self.memory = LocalCheckpointBackend(directory.path, self._signer)
        atexit.register(directory.remove)

    def keep_first(self, given: Checkpoint) -> Checkpoint:
        """Write the dict that the run starts from into the run's directory, as a signed checkpoint."""
        folder = self.path / layout.FIRST
        durable_fs.remove(folder)
        given.to_directory(folder)
        manifest = Manifest(
            number=0,
            name=layout.FIRST,
            seq=0,
            attempt=0,
            world_size=0,
            ranks=[0],
            metrics={},
            files=flush_files(folder),
            time=time.time(),
            versions=versions(),
        )
        write_manifest(folder, manifest.signed(self.id, self.key))
        return Checkpoint.of(str(folder), key=self.key)

    def differences(self, asked: Opening) -> list[str]:
        """Sentences about settings that changed since the last opening."""
        before = self._description.openings[-1] if self._description.openings else asked
        found = [
            f"{part}: {_changes(then, now)}"
            for part, then, now in (
                ("train_loop_config", before.train_loop_config or {}, asked.train_loop_config or {}),
                ("scaling_config", before.scaling_config, asked.scaling_config),
                ("checkpoint_config", before.checkpoint_config, asked.checkpoint_config),
                ("failure_config", before.failure_config, asked.failure_config),
            )
            if then != now
        ]
        if before.code != asked.code:
            found.append(f"the code of {asked.function}")
        return [*found, *_dataset_changes(before.datasets or {}, asked.datasets or {})]

    def describe(self, asked: Opening) -> None:
        """Add this opening to ``run.json``."""
        opening = replace(asked, time=time.time(), host=socket.gethostname(), pid=os.getpid())
        self._description = replace(self._description, openings=(*self._description.openings, opening))
        write_json(self.path / layout.DESCRIPTION, self._description.to_json())
        if self._mirror is not None:
            self._mirror.copy()

    def note(self, entry: JournalEntry) -> None:
        """Add an entry to the journal."""
        self._journal.write(line_of(entry))

    @property
    def trouble(self) -> OSError | None:
        """The error that prevents writing the journal or metrics; their lines are kept until it is resolved."""
        return self._journal.trouble or self._metrics.trouble

    def record(self, lines: bytes) -> None:
        """Append complete lines to ``metrics.jsonl``."""
        self._metrics.write(lines)

    def append_data(self, line: DataStatsLine) -> None:
        """Add a line to ``data.jsonl``."""
        if self._data is None:
            self._data = Appender(self.path / layout.DATA)
        self._data.write(line_of(line))

    def close(self) -> None:
        """Close the files and release the lock; may be called again."""
        if self._lock.closed:
            return
        self._journal.close()
        self._metrics.close()
        if self._data is not None:
            self._data.close()
        if self.trouble is not None:
            self.complaint = f"the end of the journal and of the metrics could not be written: {self.trouble}"
        if self._mirror is not None:
            self.complaint = self._mirror.close() or self.complaint
        fcntl.flock(self._lock, fcntl.LOCK_UN)  # a process that the user forked may hold a copy of the descriptor
        self._lock.close()


def _dataset_changes(
    before: Mapping[str, DatasetDescription], after: Mapping[str, DatasetDescription]
) -> Iterator[str]:
    """Yield what has changed although the files, the order and the filters' names have not, which is refused."""
    for name in before.keys() & after.keys():
        then, now = before[name], after[name]
        if then.filter_code is not None and now.filter_code is not None and then.filter_code != now.filter_code:
            yield f"the code of the functions that drop rows of dataset {printable(name)!r}"
        if then.window != now.window:
            yield f"the shuffle window of dataset {printable(name)!r}: {then.window:,} → {now.window:,} rows"


def _changes(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    text = ", ".join(f"{key} {before.get(key)!r} → {after.get(key)!r}" for key in keys)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
