"""Reported checkpoints, as ``get_all_reported_checkpoints()`` returns them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.core.validation import ReportedCheckpointStatus
from headway.storage.checkpoint.checkpoint import Checkpoint


@dataclass(frozen=True)
class ReportedCheckpoint:
    """A checkpoint that the run keeps.

    Args:
        checkpoint: The checkpoint.
        metrics: The reported metrics and, after its validation, the metrics that the validation returned.
        status: Whether it is committed or waiting for its validation, or how the validation ended.
    """

    checkpoint: Checkpoint
    metrics: dict[str, Any]
    status: ReportedCheckpointStatus
