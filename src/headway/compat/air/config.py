"""The configs of that generation: ours, by which a trainer knows that its runs are trials."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import config
from headway.core.config import CheckpointConfig, FailureConfig, known_options_only

__all__ = ["CheckpointConfig", "FailureConfig", "RunConfig", "ScalingConfig"]


@known_options_only
@dataclass(frozen=True)
class ScalingConfig(config.ScalingConfig):
    """See :class:`headway.train.ScalingConfig`."""


@known_options_only
@dataclass(frozen=True)
class RunConfig(config.RunConfig):
    """See :class:`headway.train.RunConfig`."""
