"""The configs of Ray AIR. A trainer that is given one of them presents its runs as AIR trials."""

from __future__ import annotations

from headway.compat.retired_options import CheckpointConfig, FailureConfig, RayRunConfig, RayScalingConfig

__all__ = ["CheckpointConfig", "FailureConfig", "RunConfig", "ScalingConfig"]


class AirScalingConfig(RayScalingConfig):
    """See :class:`headway.train.ScalingConfig`."""


class AirRunConfig(RayRunConfig):
    """See :class:`headway.train.RunConfig` for the other options.

    Args:
        *args: Positional arguments, in the order of :class:`headway.train.RunConfig`.
        verbose: 0 logs warnings only.
        local_dir: An older name for ``storage_path``.
        **options: Keyword arguments.
    """


# Scripts import the classes under these names.
RunConfig = AirRunConfig
ScalingConfig = AirScalingConfig
