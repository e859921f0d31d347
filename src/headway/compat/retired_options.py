"""Configs with options that Ray has removed since: they are supported, or refused with a reason.

A value without effect (None, False, 0) is accepted. Anything else that is not supported is refused, never ignored.
"""

from __future__ import annotations

from typing import Any

from headway.core import config
from headway.core.config import LoggingConfig
from headway.core.errors import ConfigError

# Options for the scheduler of a cluster; without effect on one machine.
_SCHEDULING = ("trainer_resources", "_max_cpu_fraction_per_node")


def _refuse_unsupported(kind: str, options: dict[str, Any], reasons: dict[str, str]) -> dict[str, Any]:
    """The options without the retired ones; ConfigError if a retired one has a value with an effect."""
    for name, reason in reasons.items():
        if options.pop(name, None):
            raise ConfigError(f"{kind}({name}=...) is not supported: {reason}")
    return options


class RayRunConfig(config.RunConfig):
    """See :class:`headway.train.RunConfig` for the other options.

    Args:
        *args: As before, by position.
        verbose: 0 logs warnings only.
        local_dir: An older name for ``storage_path``.
        **options: By name.
    """

    def __init__(self, *args: Any, verbose: int | None = None, local_dir: Any = None, **options: Any) -> None:
        if local_dir is not None:
            options.setdefault("storage_path", local_dir)
        if verbose == 0:
            options.setdefault("logging_config", LoggingConfig(log_level="WARNING"))
        reasons = {
            "stop": "let the function return, or call stop() on the handle that trainer.start() returns",
            "sync_config": "storage_path may be a URI, and checkpoints are written there directly",
            "progress_reporter": "a callback sees every report",
            "log_to_file": "every rank's output is in the run's logs directory anyway",
        }
        super().__init__(*args, **_refuse_unsupported("RunConfig", options, reasons))


class RayScalingConfig(config.ScalingConfig):
    """Resources of the driver had a meaning on a cluster; on one machine they are ignored."""

    def __init__(self, *args: Any, **options: Any) -> None:
        known = {name: value for name, value in options.items() if name not in _SCHEDULING}
        super().__init__(*args, **known)


class RayCheckpointConfig(config.CheckpointConfig):
    """Options that saved checkpoints by themselves are refused."""

    def __init__(self, *args: Any, **options: Any) -> None:
        reason = "the function reports its checkpoints, or train.track() saves what it follows"
        reasons = dict.fromkeys(("checkpoint_frequency", "checkpoint_at_end"), reason)
        super().__init__(*args, **_refuse_unsupported("CheckpointConfig", options, reasons))


class RayFailureConfig(config.FailureConfig):
    """``fail_fast`` is refused."""

    def __init__(self, *args: Any, **options: Any) -> None:
        reasons = {"fail_fast": "max_failures=0 ends the run at the first failure"}
        super().__init__(*args, **_refuse_unsupported("FailureConfig", options, reasons))


# Scripts know them by these names.
RunConfig = RayRunConfig
ScalingConfig = RayScalingConfig
CheckpointConfig = RayCheckpointConfig
FailureConfig = RayFailureConfig
