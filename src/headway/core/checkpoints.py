"""Descriptions of committed checkpoints: frozen values that the state machine, storage and readers share.

A manifest never changes after the commit. Later information, such as the outcome of a validation, is stored next to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePath
from typing import Any

from headway.core.schema.data_cursor import DataCursor
from headway.core.schema.record import FORMAT
from headway.core.security.signing import Key
from headway.core.validation import ReportedCheckpointStatus

PENDING = ReportedCheckpointStatus.PENDING_VALIDATION


def checkpoint_name(number: int) -> str:
    """Default name of a checkpoint, if the user chose none."""
    return f"checkpoint_{number:06d}"


def differing_places(places: Iterable[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    """Return the lowest rank and one whose tracked state is at another step, or nothing.

    Args:
        places: Ranks with the steps of their tracked state.
    """
    first, *others = sorted(places) or [(0, "")]
    return next(((first, other) for other in others if other[1] != first[1]), ())


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file at the time of its commit. ``sha256`` is empty for files in directories that were never committed."""

    size: int
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of a committed checkpoint.

    Args:
        number: Consecutive number of the checkpoint in its run.
        name: Name of its directory.
        seq: Number of the report that it was saved with.
        attempt: Attempt that reported it.
        world_size: Number of workers of that attempt.
        ranks: Ranks that gave files.
        metrics: Metrics of the report.
        values: Numbers in the dict that the checkpoint was made from.
        cursor: Position in the training data.
        files: Every file with its size and checksum.
        time: Time of the commit, in seconds since 1970.
        versions: Versions of Headway and Python that wrote it.
        run: Id of the run that committed it.
        signature: Signature by that run's key; empty if there is no proof that the run itself wrote the content.
        format: Version of this layout.
    """

    number: int
    name: str
    seq: int
    attempt: int
    world_size: int
    ranks: list[int]
    metrics: dict[str, Any]
    values: dict[str, float] = field(default_factory=dict)
    cursor: DataCursor = field(default_factory=DataCursor)
    files: dict[str, StoredFile]
    time: float
    versions: dict[str, str] = field(default_factory=dict)
    run: str = ""
    signature: str = ""
    format: int = FORMAT

    @property
    def round(self) -> tuple[int, int]:
        """The attempt and the number of the report that it was saved with."""
        return self.attempt, self.seq

    @property
    def size(self) -> int:
        return sum(stored.size for stored in self.files.values())

    def signed(self, run: str, key: Key) -> Manifest:
        """A copy of the manifest, signed with the key of the run with this id."""
        unsigned = replace(self, run=run)
        return replace(unsigned, signature=key.sign("manifest", unsigned._signable))

    def is_signed(self, key: Key) -> bool:
        return key.verify("manifest", self._signable, self.signature)

    @property
    def _signable(self) -> bytes:
        """The signed bytes, the same before writing and after reading."""
        content = {**self.to_json(), "signature": ""}
        return json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode()

    def to_json(self) -> dict[str, Any]:
        """The content of the file, without its checksum."""
        return {**asdict(self), "cursor": self.cursor.to_json()}


@dataclass(frozen=True, kw_only=True)
class ValidationRecord:
    """The request to validate a checkpoint, and later its outcome.

    Args:
        status: Pending, or the outcome.
        metrics: Metrics that the validation function returned.
        error: Why the validation failed.
        kwargs: Packed keyword arguments from the report, in addition to the trainer's.
        timeout_s: Time limit from the report.
        format: Version of this layout.
    """

    status: ReportedCheckpointStatus = PENDING
    metrics: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    kwargs: dict[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None
    format: int = FORMAT

    @property
    def pending(self) -> bool:
        return self.status is PENDING


@dataclass(frozen=True)
class FileConflict:
    """Ranks gave files with the same name but different contents; the copy of the first of ``ranks`` was kept."""

    file: str
    ranks: tuple[int, ...]
    shared: str = ""  # the directory that all of them copied from, if there is one


@dataclass(frozen=True)
class SavedCheckpoint:
    """A committed checkpoint. ``path`` is a directory, or a key in the run's object store."""

    path: PurePath
    manifest: Manifest
    conflicts: tuple[FileConflict, ...] = ()
    seconds: float = 0.0  # duration of the upload
    validation: ValidationRecord | None = None  # None: no validation was requested

    def __hash__(self) -> int:
        return hash((self.path, self.manifest.seq))  # manifests hold dicts

    @property
    def seq(self) -> int:
        return self.manifest.seq

    @property
    def metrics(self) -> dict[str, Any]:
        """Metrics of its report and of its validation; validation metrics take precedence."""
        return {**self.manifest.metrics, **(self.validation.metrics if self.validation else {})}

    @property
    def awaits_validation(self) -> bool:
        return self.validation is not None and self.validation.pending
