"""How a reported checkpoint is saved: what the arguments of ``report()`` say, and what autosaved state adds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.core.config import CheckpointUploadMode
from headway.core.errors import ConfigError
from headway.core.schema.data_cursor import DataCursor
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.staging import is_in_checkpoint


@dataclass(frozen=True, kw_only=True)
class SaveOptions:
    """How to save a checkpoint.

    Args:
        mode: Whether ``report()`` waits for the files.
        name: The name of the checkpoint, if the user has chosen one.
        delete_local: Whether files are moved instead of copied; None: in ASYNC mode only.
        upload: The user's own function that brings the files to the run's storage.
        scratch: Whether the directory is removed afterwards.
        cursor: The position in the training, for people.
        positions: The position in each dataset.
        place: The position of autosaved state, in words: equal on all ranks.
    """

    mode: CheckpointUploadMode = CheckpointUploadMode.SYNC
    name: str | None = None
    delete_local: bool | None = None
    upload: Callable[[Checkpoint, str], object] | None = None
    scratch: bool = False
    cursor: DataCursor = field(default_factory=DataCursor)
    positions: dict[str, Any] = field(default_factory=dict)
    place: str = ""

    @property
    def moves_files(self) -> bool:
        """Whether the caller's files are moved instead of copied."""
        return self.mode is CheckpointUploadMode.ASYNC if self.delete_local is None else self.delete_local

    def for_files_in(self, source: Path) -> SaveOptions:
        """These options, but files that belong to a run's directory are copied before ``report()`` returns."""
        copied_now = self.mode is CheckpointUploadMode.SYNC and not self.moves_files
        if copied_now or self.scratch or not is_in_checkpoint(source):
            return self
        return replace(self, mode=CheckpointUploadMode.SYNC, delete_local=False)

    def uploaded(self, checkpoint: Checkpoint, seq: int) -> Checkpoint:
        """What the user's own function made of a checkpoint."""
        assert self.upload is not None
        found = self.upload(checkpoint, self.name or f"checkpoint_report_{seq:06d}")
        if not isinstance(found, Checkpoint):
            kind = type(found).__name__
            raise ConfigError(f"checkpoint_upload_fn must return a Checkpoint, it returned a {kind}")
        return found

    def recorded_cursor(self) -> DataCursor:
        """The position in training and data, for recovery of files whose report was lost."""
        datasets: dict[str, object] = {name: {"position": position} for name, position in self.positions.items()}
        return replace(self.cursor, datasets=datasets or None)
