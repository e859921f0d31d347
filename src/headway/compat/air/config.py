"""The configs of Ray AIR: a trainer that gets one of them makes trials of its runs."""

from __future__ import annotations

from headway.compat.retired_options import CheckpointConfig, FailureConfig, RayRunConfig, RayScalingConfig

__all__ = ["CheckpointConfig", "FailureConfig", "RunConfig", "ScalingConfig"]


class AirScalingConfig(RayScalingConfig):
    """See :class:`headway.train.ScalingConfig`."""


class AirRunConfig(RayRunConfig):
    """See :class:`headway.train.RunConfig` for the other options.

    Args:
        *args: As before, by position.
        verbose: 0 logs warnings only.
        local_dir: An older name for ``storage_path``.
        **options: By name.
    """


# Scripts know them by these names.
RunConfig = AirRunConfig
ScalingConfig = AirScalingConfig
