"""Configs with options that Ray has since removed, which are either supported or refused with a reason.

A value without effect (None, False, 0) is accepted. Any other value that is not supported is refused, never ignored.
"""

from __future__ import annotations

from typing import Any

from headway.core import config
from headway.core.config import LoggingConfig
from headway.core.errors import ConfigError

# Options for a cluster's scheduler, which have no effect on one machine.
_SCHEDULING = ("trainer_resources", "_max_cpu_fraction_per_node")


def _refuse_unsupported(kind: str, options: dict[str, Any], reasons: dict[str, str]) -> dict[str, Any]:
    """Return the options without the unsupported ones; raise ConfigError if one of those has an effective value."""
    for name, reason in reasons.items():
        if options.pop(name, None):
            raise ConfigError(f"{kind}({name}=...) is not supported: {reason}")
    return options


class RayRunConfig(config.RunConfig):
    """See :class:`headway.train.RunConfig` for the other options.

    Args:
        *args: Positional arguments, in the order of :class:`headway.train.RunConfig`.
        verbose: 0 logs warnings only.
        local_dir: An older name for ``storage_path``.
        **options: Keyword arguments.
    """

    def __init__(self, *args: Any, verbose: int | None = None, local_dir: Any = None, **options: Any) -> None:
        if local_dir is not None:
            options.setdefault("storage_path", local_dir)
        if verbose == 0:
            options.setdefault("logging_config", LoggingConfig(log_level="WARNING"))
        reasons = {
            "stop": "let the function return, or call stop() on the handle that trainer.start() returns",
            "sync_config": "storage_path may be a URI, and checkpoints are written directly to it",
            "progress_reporter": "a callback receives every report",
            "log_to_file": "every rank's output is always written to the run's logs directory",
        }
        super().__init__(*args, **_refuse_unsupported("RunConfig", options, reasons))


class RayScalingConfig(config.ScalingConfig):
    """A config that ignores options for the driver's resources, which matter only on a cluster."""

    def __init__(self, *args: Any, **options: Any) -> None:
        known = {name: value for name, value in options.items() if name not in _SCHEDULING}
        super().__init__(*args, **known)


class RayCheckpointConfig(config.CheckpointConfig):
    """A config that refuses the options for automatic checkpoints."""

    def __init__(self, *args: Any, **options: Any) -> None:
        reason = "the function reports its checkpoints, or train.track() saves them"
        reasons = dict.fromkeys(("checkpoint_frequency", "checkpoint_at_end"), reason)
        super().__init__(*args, **_refuse_unsupported("CheckpointConfig", options, reasons))


class RayFailureConfig(config.FailureConfig):
    """A config that refuses ``fail_fast``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        reasons = {"fail_fast": "max_failures=0 ends the run at the first failure"}
        super().__init__(*args, **_refuse_unsupported("FailureConfig", options, reasons))


# Scripts import the classes under these names.
RunConfig = RayRunConfig
ScalingConfig = RayScalingConfig
CheckpointConfig = RayCheckpointConfig
FailureConfig = RayFailureConfig
