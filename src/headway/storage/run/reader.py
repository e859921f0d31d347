"""Readers of runs: state, reports, checkpoints and failures, for results and the command line."""

from __future__ import annotations

import functools
import math
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from headway.core.checkpoints import SavedCheckpoint
from headway.core.config import CheckpointConfig, local_path
from headway.core.errors import StorageError
from headway.core.process.temp_directories import OwnedDirectory
from headway.core.schema.journal_entries import ENDED, JournalEntry, state_of
from headway.core.schema.metrics_lines import AttemptLine, ReportLine
from headway.core.schema.run_description import Opening, RunDescription
from headway.storage.checkpoint.backend import CheckpointBackend
from headway.storage.jsonl import JsonLines
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.client_selection import is_remote, open_store
from headway.storage.object_store.log_mirror import fetch_record
from headway.storage.run import failure_bundle, journal, layout
from headway.storage.run.description import checkpoint_config, read_description
from headway.storage.run.location import DirectoryRunLocation, RunLocation, StoreRunLocation


class _Keeper:
    """A temporary directory that is removed when this object is garbage-collected."""

    def __init__(self) -> None:
        directory = OwnedDirectory("record")
        self.folder = directory.path
        weakref.finalize(self, directory.remove)


@dataclass(frozen=True)
class RunReader:
    """One run, read from its directory. Each access reads the current files."""

    path: Path  # directory of its journal; checkpoints may be elsewhere
    location: RunLocation
    memory: CheckpointBackend | None = None  # checkpoints in shared memory, removed with this process
    keeper: _Keeper | None = None  # owns the directory if it is a copy

    @classmethod
    def at(cls, where: str | os.PathLike[str], filesystem: Any = None) -> RunReader:
        """The run at a path or a URI in an object store. The journal of a run in a store is fetched now."""
        if is_remote(where, filesystem):
            return cls._in_store(open_store(where, filesystem))
        path = local_path(where)
        if not os.path.lexists(path / layout.DESCRIPTION):
            if path.is_dir() and not os.access(path, os.X_OK):
                raise StorageError(f"{path} cannot be read: Permission denied")
            raise StorageError(f"{path} is not a run directory: it has no {layout.DESCRIPTION}")
        return cls(path, DirectoryRunLocation(path))

    @classmethod
    def _in_store(cls, store: ObjectStore) -> RunReader:
        keeper = _Keeper()
        name = PurePosixPath(store.path).name
        home = keeper.folder / (name if layout.is_plain_name(name) else "run")
        home.mkdir()
        fetch_record(store, home)
        if not (home / layout.DESCRIPTION).stat().st_size:
            raise StorageError(f"{store.url} is not a run: it has no {layout.DESCRIPTION}")
        return cls(home, StoreRunLocation(store), keeper=keeper)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def url(self) -> str:
        """The path or URI of the run, for messages."""
        return self.location.url

    @property
    def is_copy(self) -> bool:
        """Whether this is a local copy of a run in an object store."""
        return self.keeper is not None

    @property
    def checkpoint_backend(self) -> CheckpointBackend:
        """The checkpoints of the run, to read."""
        return self.location.backend

    @property
    def is_open(self) -> bool:
        """Whether a controller has the run open now."""
        return self.location.is_open()

    @property
    def description(self) -> RunDescription:
        try:
            return read_description(self.path)
        except FileNotFoundError:
            raise StorageError(f"{self.path} is not a run directory: it has no {layout.DESCRIPTION}") from None

    @property
    def opening(self) -> Opening:
        """The newest opening of the run."""
        return self.description.newest

    @property
    def checkpoint_config(self) -> CheckpointConfig:
        return checkpoint_config(self.path, self.opening)

    @property
    def journal(self) -> JsonLines[JournalEntry]:
        """Every transition of the run, with its cause."""
        return journal.journal(self.path)

    def damage(self) -> list[str]:
        """Sentences about damaged lines of journal and metrics."""
        return list(journal.damage(self.path))

    @property
    def state(self) -> str:
        """The last state in the journal; INTERRUPTED if it is not final and no controller has the run open."""
        held = self.is_open
        state = "WAITING"
        for entry in self.journal.lines():
            state = state_of(entry) or state
        return state if state in ENDED or held or self.is_open else "INTERRUPTED"

    def checkpoints(self) -> list[SavedCheckpoint]:
        kept = [*self.checkpoint_backend.survey().kept, *(self.memory.survey().kept if self.memory else ())]
        return sorted(kept, key=lambda saved: saved.manifest.seq)

    def failures(self) -> list[Path]:
        """The directories of failure bundles, oldest first. For a run in a store only the summaries are fetched."""
        self.location.fetch_failures(self.path)
        return failure_bundle.bundles(self.path)

    def reports(self, rank: int = 0) -> list[ReportLine]:
        """The reports of a rank in order; if later attempts repeated a report, the last one."""
        rows: list[ReportLine] = []
        for line in journal.metrics(self.path).lines():
            match line:
                case AttemptLine(first_seq=first_seq):
                    rows = [row for row in rows if row.seq < first_seq]
                case ReportLine() if line.rank == rank:
                    rows.append(line)
        return rows

    def newest_metrics(self) -> dict[str, Any] | None:
        """The newest metrics of rank 0. Reads the file backwards, because it may be long."""
        limit = math.inf  # where the next attempt resumed: older lines count only before this report
        for line in journal.metrics(self.path).backwards():
            match line:
                case AttemptLine(first_seq=first_seq):
                    limit = min(limit, first_seq)
                case ReportLine(rank=0, seq=seq, metrics=metrics) if seq < limit:
                    return metrics
        return None


@dataclass(frozen=True)
class Runs:
    """The runs of a storage directory, newest first, and the names of unreadable ones with the reason."""

    readable: list[RunReader]
    unreadable: dict[str, str]


def runs_in_store(storage: ObjectStore) -> Runs:
    """All runs in a directory of an object store."""
    names = sorted(
        key.split("/")[0] for key in storage.sizes() if key.endswith(f"/{layout.DESCRIPTION}") and key.count("/") == 1
    )
    return _readable({name: functools.partial(RunReader._in_store, storage.at(name)) for name in names})


def runs(storage: Path) -> Runs:
    """All runs in a directory."""
    try:
        paths = [path.parent for path in sorted(storage.glob(f"*/{layout.DESCRIPTION}"))]
    except OSError as error:  # the name is too long, for example
        raise StorageError(f"{storage} cannot be read: {error.strerror}") from None
    return _readable({path.name: functools.partial(RunReader, path, DirectoryRunLocation(path)) for path in paths})


def _readable(found: Mapping[str, Callable[[], RunReader]]) -> Runs:
    readable: list[tuple[float, RunReader]] = []
    unreadable: dict[str, str] = {}
    for name, read in found.items():
        try:
            record = read()
            readable.append((record.description.created, record))
        except (StorageError, OSError) as error:
            unreadable[name] = str(error)
    return Runs([record for _, record in sorted(readable, key=lambda each: -each[0])], unreadable)
