"""The configs of Ray AIR: a trainer that gets one of them makes trials of its runs."""

from __future__ import annotations

from headway.compat import retired_options
from headway.compat.retired_options import CheckpointConfig, FailureConfig

__all__ = ["CheckpointConfig", "FailureConfig", "RunConfig", "ScalingConfig"]


class ScalingConfig(retired_options.ScalingConfig):
    """See :class:`headway.train.ScalingConfig`."""


class RunConfig(retired_options.RunConfig):
    """See :class:`headway.train.RunConfig` for the other options.

    Args:
        *args: As before, by position.
        verbose: 0 logs warnings only.
        local_dir: An older name for ``storage_path``.
        **options: By name.
    """
