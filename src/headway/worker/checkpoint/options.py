"""The options for saving a reported checkpoint, from the arguments of ``report()`` and from autosaved state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.core import phrases
from headway.core.config import CheckpointUploadMode
from headway.core.errors import ConfigError
from headway.core.schema.data_cursor import DataCursor
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.staging import is_in_checkpoint


@dataclass(frozen=True, kw_only=True)
class SaveOptions:
    """The options for saving a checkpoint.

    Args:
        mode: Whether ``report()`` waits for the files.
        name: The name of the checkpoint, if the user chose one.
        delete_local: Whether files are moved instead of copied; None: in ASYNC mode only.
        upload: The user's function that uploads the files to the run's storage.
        scratch: Whether the directory is removed afterwards.
        cursor: The position in the training, for humans.
        positions: The position in each dataset.
        place: A description of the point where autosaved state was captured; equal on all ranks.
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
        """Return these options, changed so that files of a run's directory are copied before ``report()`` returns."""
        copied_now = self.mode is CheckpointUploadMode.SYNC and not self.moves_files
        if copied_now or self.scratch or not is_in_checkpoint(source):
            return self
        return replace(self, mode=CheckpointUploadMode.SYNC, delete_local=False)

    def uploaded(self, checkpoint: Checkpoint, seq: int) -> Checkpoint:
        """Upload a checkpoint with the user's function and return its result."""
        assert self.upload is not None
        found = self.upload(checkpoint, self.name or f"checkpoint_report_{seq:06d}")
        if not isinstance(found, Checkpoint):
            kind = phrases.a_kind(found)
            raise ConfigError(f"checkpoint_upload_fn must return a Checkpoint, it returned {kind}")
        return found

    def recorded_cursor(self) -> DataCursor:
        """Return the position in training and data, for recovering files whose report was lost."""
        datasets: dict[str, object] = {name: {"position": position} for name, position in self.positions.items()}
        return replace(self.cursor, datasets=datasets or None)
