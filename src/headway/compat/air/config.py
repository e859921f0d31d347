"""The configs of that generation: by them a trainer knows that its runs are trials."""

from __future__ import annotations

from headway.compat import configs
from headway.compat.configs import CheckpointConfig, FailureConfig

__all__ = ["CheckpointConfig", "FailureConfig", "RunConfig", "ScalingConfig"]


class ScalingConfig(configs.ScalingConfig):
    """See :class:`headway.train.ScalingConfig`."""


class RunConfig(configs.RunConfig):
    """See :class:`headway.train.RunConfig`."""
