"""A checkpoint as ``get_all_reported_checkpoints()`` gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.core.validation import ReportedCheckpointStatus
from headway.storage.checkpoint.checkpoint import Checkpoint


@dataclass(frozen=True)
class ReportedCheckpoint:
    """``metrics`` are those it was reported with and, once it is validated, those of its validation."""

    checkpoint: Checkpoint
    metrics: dict[str, Any]
    status: ReportedCheckpointStatus
