"""Configs of validation during training, and the states of a validated checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headway.core.config import check_env_vars, known_options_only
from headway.core.errors import ConfigError


class ReportedCheckpointStatus(StrEnum):
    """The state of a checkpoint: committed, waiting for its validation, or the outcome of the validation."""

    COMMITTED = "COMMITTED"
    PENDING_VALIDATION = "PENDING_VALIDATION"
    VALIDATED = "VALIDATED"
    VALIDATION_TIMEOUT = "VALIDATION_TIMEOUT"
    VALIDATION_FAILED = "VALIDATION_FAILED"


class CheckpointConsistencyMode(StrEnum):
    """What ``get_all_reported_checkpoints()`` waits for: this rank's last checkpoint, or all validations as well."""

    COMMITTED = "COMMITTED"
    VALIDATED = "VALIDATED"


@known_options_only
@dataclass(frozen=True)
class ValidationTaskConfig:
    """Keywords and time limit of a validation.

    Values in ``report(validation=...)`` override values in ``ValidationConfig``, keyword by keyword.

    Args:
        fn_kwargs: Keywords for the validation function.
        timeout_s: Seconds that the function may take; None: no limit.

    >>> ValidationTaskConfig(fn_kwargs={"split": "test"}, timeout_s=60).timeout_s
    60
    """

    fn_kwargs: Mapping[str, Any] | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        kwargs, seconds = self.fn_kwargs, self.timeout_s
        if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs)):
            raise ConfigError(f"fn_kwargs must be a dict of keywords for the validation function, got {kwargs!r}")
        if seconds is not None and (not isinstance(seconds, int | float) or isinstance(seconds, bool) or seconds <= 0):
            raise ConfigError(f"timeout_s must be None (no limit) or a positive number of seconds, got {seconds!r}")


@known_options_only
@dataclass(frozen=True)
class ValidationConfig:
    """The function that validates checkpoints during training.

    It is called in a separate process for each checkpoint of a ``report(..., validation=True)``, oldest first. The
    returned dict is added to the checkpoint's metrics, which rank the checkpoint.

    Args:
        fn: The function: ``fn(checkpoint, **kwargs) -> dict``.
        task_config: Default keywords and time limit.
        ray_remote_kwargs: Only ``{"runtime_env": {"env_vars": {...}}}`` has an effect: environment variables.
        max_concurrent: Maximum number of validations at a time.

    >>> def validate(checkpoint, split="valid"):
    ...     return {"accuracy": 0.9}
    >>> ValidationConfig(fn=validate, task_config=ValidationTaskConfig(timeout_s=600)).max_concurrent
    2
    """

    fn: Callable[..., dict[str, Any]]
    task_config: ValidationTaskConfig | None = None
    ray_remote_kwargs: Mapping[str, Any] | None = None
    max_concurrent: int = 2

    def __post_init__(self) -> None:
        _check_function(self.fn)
        if self.task_config is not None and not isinstance(self.task_config, ValidationTaskConfig):
            raise ConfigError(f"task_config must be a ValidationTaskConfig, got {self.task_config!r}")
        given = self.ray_remote_kwargs
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f"ray_remote_kwargs must be a dict, got {given!r}")
        check_env_vars("ray_remote_kwargs", self.env_vars)
        n = self.max_concurrent
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ConfigError(f"max_concurrent must be a positive number of validations, got {n!r}")

    @property
    def env_vars(self) -> dict[str, str]:
        runtime_env = (self.ray_remote_kwargs or {}).get("runtime_env") or {}
        variables: dict[str, str] = runtime_env.get("env_vars", {}) if isinstance(runtime_env, Mapping) else {}
        return variables


def _check_function(fn: object) -> None:
    if not callable(fn):
        hint = ": did you call it?" if fn is None or isinstance(fn, dict) else ""
        raise ConfigError(f"ValidationConfig needs a function, fn(checkpoint, **kwargs) -> dict, got {fn!r}{hint}")
    name = repr(getattr(fn, "__name__", type(fn).__name__))
    if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn):
        raise ConfigError(f"the validation function {name} must be a plain function, not a generator or coroutine")
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return
    by_position = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    if not any(parameter.kind in by_position for parameter in parameters):
        raise ConfigError(f"the validation function {name} must take the checkpoint as its first parameter")
