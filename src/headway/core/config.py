"""The configs of trainers, checked when they are built.

Config objects are frozen. An invalid value raises a ConfigError that names the field, the value and the remedy, so that
all other code can rely on valid configs.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from headway.core.environment import expanded, results_folder, wanted_engine, wanted_log_level
from headway.core.errors import ConfigError, UnknownOption

Resume = Literal["auto", "never", "must"]
ENGINES = ("auto", "local", "inline")
PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LONGEST_NAME = 255  # bytes of a directory name on Linux

C = TypeVar("C")
Init = TypeVar("Init", bound=Callable[..., None])


class CheckpointUploadMode(StrEnum):
    """When ``report()`` returns, and what happens to the files.

    SYNC: after the files are copied to the run's storage. ASYNC: immediately; the files are moved out of the caller's
    directory and uploaded in the background. NO_UPLOAD: the files are already on the run's storage, in its
    ``checkpoints`` directory.
    """

    SYNC = "SYNC"
    ASYNC = "ASYNC"
    NO_UPLOAD = "NO_UPLOAD"


# Keywords of other libraries, and what to use instead.
ELSEWHERE = {
    "storage_filesystem": "pass it to RunConfig, together with storage_path",
    "sync_config": "files go straight to storage_path; there is nothing to sync",
    "verbose": "use logging_config=LoggingConfig(log_level=...)",
    "log_to_file": "every rank's output is always kept under logs/ in the run directory",
    "progress_reporter": "use callbacks=[UserCallback()]",
    "stop": "return from the training function, or call stop() on the handle that trainer.start() returns",
    "fail_fast": "use max_failures=0",
    "trainer_resources": "the controller runs in your own process and needs no resources",
    "checkpoint_frequency": "call report(metrics, checkpoint=...) as often as you like",
    "checkpoint_at_end": "call report(metrics, checkpoint=...) at the end of your function",
    "torch_config": "use headway.train.torch.TorchTrainer",
    "backend_config": "it is the option of another trainer: TorchTrainer takes torch_config",
    "config": "use train_loop_config for the arguments of the training function",
}


def refuse_unknown_keywords(init: Init) -> Init:
    """Make ``__init__`` reject unknown keywords with an error that suggests the closest known name."""
    known = [name for name in inspect.signature(init).parameters if name != "self"]
    owner = init.__qualname__.split(".")[-2:][0]  # the name of the class in the documentation

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in known:
                raise UnknownOption(_unknown(owner, name, known))
        init(self, *args, **kwargs)

    return cast(Init, checked)


def _unknown(owner: str, name: str, known: Sequence[str]) -> str:
    if name in ELSEWHERE:
        return f"{owner} takes no {name!r}: {ELSEWHERE[name]}"
    return unknown_option(owner, name, known)


def unknown_option(owner: str, name: str, known: Sequence[str]) -> str:
    """The error message for an option that does not exist, with the closest known one."""
    near = difflib.get_close_matches(name, known, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
    return f"{owner} takes no {name!r}: {remedy}"


def known_options_only(cls: type[C]) -> type[C]:
    """Apply :func:`refuse_unknown_keywords` to a dataclass."""
    cls.__init__ = refuse_unknown_keywords(cls.__init__)  # type: ignore[method-assign]
    return cls


@known_options_only
@dataclass(frozen=True)
class ScalingConfig:
    """The number of workers, and the resources of each.

    Args:
        num_workers: A positive number; 0 runs the function in this process; ``(min, max)`` starts as many workers as
            the free resources allow, and adapts when they change.
        use_gpu: Whether each worker gets a GPU.
        resources_per_worker: Resources of each worker by name, like ``{"CPU": 2, "GPU": 0.5}``. Default: one GPU with
            ``use_gpu``, otherwise one CPU.
        placement_strategy: ``PACK``, ``SPREAD``, ``STRICT_PACK`` or ``STRICT_SPREAD``. All workers are on this machine,
            so ``STRICT_SPREAD`` allows only one worker.
        engine: ``"auto"``, ``"local"`` (processes on this machine) or ``"inline"`` (this process, so that
            ``breakpoint()`` works).
        elastic_resize_monitor_interval_s: Minimum time between two changes of the number of workers.
        keep_global_batch: Keep the number of rows per step constant: the rows of ``max`` workers are distributed among
            the current workers. The learning rate and the number of steps then need no adjustment when the number of
            workers changes, but with fewer workers, each needs memory for a larger batch.

    >>> ScalingConfig(num_workers=2).total_resources
    {'CPU': 2}
    """

    num_workers: int | tuple[int, int] = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    placement_strategy: str = "PACK"
    engine: str = "auto"
    elastic_resize_monitor_interval_s: float = 60.0
    keep_global_batch: bool = False

    def __post_init__(self) -> None:
        _check_workers(self.num_workers)
        if not isinstance(self.use_gpu, bool):
            raise ConfigError(f"use_gpu must be True or False, got {self.use_gpu!r}")
        _check_resources(self.resources_per_worker, self.use_gpu)
        if self.placement_strategy not in PLACEMENTS:
            raise ConfigError(
                f"placement_strategy must be one of {', '.join(PLACEMENTS)}, got {self.placement_strategy!r}"
            )
        if self.engine not in ENGINES:
            raise ConfigError(f"engine must be one of {', '.join(ENGINES)}, got {self.engine!r}")
        _check_interval(self.elastic_resize_monitor_interval_s)
        if not isinstance(self.keep_global_batch, bool):
            raise ConfigError(f"keep_global_batch must be True or False, got {self.keep_global_batch!r}")

    @property
    def min_workers(self) -> int:
        return self.num_workers[0] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def max_workers(self) -> int:
        return self.num_workers[1] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def elasticity_enabled(self) -> bool:
        return self.min_workers != self.max_workers

    @property
    def worker_resources(self) -> dict[str, float]:
        """The resources of one worker: the requested ones, or one GPU or one CPU by default."""
        resources: dict[str, float] = dict(self.resources_per_worker or {})
        if self.use_gpu:
            resources.setdefault("GPU", 1)
        return resources or {"CPU": 1}

    @property
    def num_cpus_per_worker(self) -> float:
        return self.worker_resources.get("CPU", 0)

    @property
    def num_gpus_per_worker(self) -> float:
        return self.worker_resources.get("GPU", 0)

    @property
    def additional_resources_per_worker(self) -> dict[str, float]:
        return {k: v for k, v in self.worker_resources.items() if k not in ("CPU", "GPU")}

    @property
    def total_resources(self) -> dict[str, float]:
        return {name: amount * self.max_workers for name, amount in self.worker_resources.items()}


def _check_workers(n: object) -> None:
    remedy = "num_workers must be 0 (in this process), a positive number or (min, max)"
    counts = n if isinstance(n, tuple) else (n,)
    if not all(isinstance(c, int) and not isinstance(c, bool) for c in counts) or len(counts) > 2:
        raise ConfigError(f"{remedy}, got {n!r}")
    if isinstance(n, tuple):
        if len(n) != 2 or not 1 <= n[0] <= n[1]:
            raise ConfigError(f"{remedy} with 1 <= min <= max, got {n!r}")
    elif counts[0] < 0:
        raise ConfigError(f"{remedy}, got {n!r}")


def _check_interval(seconds: object) -> None:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < math.inf:
        raise ConfigError(
            f"elastic_resize_monitor_interval_s must be a positive number of seconds, got {seconds!r}; "
            "for a fixed number of workers, set num_workers to one number"
        )


def _check_resources(resources: object, use_gpu: bool) -> None:
    if resources is None:
        return
    if not isinstance(resources, Mapping):
        raise ConfigError(f'resources_per_worker must be a dict like {{"CPU": 2}}, got {resources!r}')
    for name, amount in resources.items():
        known = str(name).upper().removesuffix("S")
        if known in ("CPU", "GPU") and name != known:
            raise ConfigError(f"resources_per_worker has no {name!r}: did you mean {known!r}?")
        if not isinstance(amount, int | float) or isinstance(amount, bool) or not amount >= 0:
            raise ConfigError(f"resources_per_worker[{name!r}] must be a number >= 0, got {amount!r}")
    gpus = resources.get("GPU", 0)
    if gpus > 1 and gpus != int(gpus):
        raise ConfigError(f'resources_per_worker["GPU"] must be less than 1 or a whole number, got {gpus!r}')
    if use_gpu and "GPU" in resources and gpus == 0:
        raise ConfigError('use_gpu=True contradicts resources_per_worker["GPU"]=0: drop one of them')


@known_options_only
@dataclass(frozen=True)
class FailureConfig:
    """How many restarts each kind of failure allows: 0 is none, -1 unlimited.

    A run that fails repeatedly without progress waits longer before each restart.

    Args:
        max_failures: Restarts after workers raise, die or stall.
        controller_failure_limit: Restarts after failures to start the workers.
        max_preemption_failures: Restarts after workers received SIGTERM or were preempted by the cluster; these do not
            count towards the other two limits.
        stall_warn_s: Seconds without progress before Headway looks for a stall and explains it; None: never.
        stall_timeout_s: Seconds without progress before a stall counts as a failure; None: never.
        retry_exceptions: Whether the run is restarted after exceptions raised by the function; if False, only
            after worker deaths and stalls.

    >>> FailureConfig(max_failures=3).max_failures
    3
    """

    max_failures: int = 0
    controller_failure_limit: int = -1
    max_preemption_failures: int = -1
    stall_warn_s: float | None = 5.0
    stall_timeout_s: float | None = None
    retry_exceptions: bool = True

    def __post_init__(self) -> None:
        for name in ("max_failures", "controller_failure_limit", "max_preemption_failures"):
            n = getattr(self, name)
            if not isinstance(n, int) or isinstance(n, bool) or n < -1:
                raise ConfigError(f"{name} must be -1 (unlimited), 0 or a positive number, got {n!r}")
        for name in ("stall_warn_s", "stall_timeout_s"):
            _check_seconds(name, getattr(self, name))


def _check_seconds(name: str, seconds: object) -> None:
    if seconds is not None and (not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0):
        raise ConfigError(f"{name} must be None or a positive number of seconds, got {seconds!r}")


@known_options_only
@dataclass(frozen=True)
class CheckpointConfig:
    """Which checkpoints are kept, and how often tracked state is saved.

    Args:
        num_to_keep: How many of the best checkpoints to keep, in addition to the newest one; None keeps all. With 0, no
            checkpoint is written to disk; the newest one is kept in memory until this process ends, for restarts and
            for the result.
        checkpoint_score_attribute: The metric that ranks checkpoints, with slashes for nested keys (``"valid/loss"``).
            Default: the most recent checkpoints are the best.
        checkpoint_score_order: Whether the ``"max"`` or the ``"min"`` of the metric is best.
        every_reports: Interval in reports between saves of tracked state (``train.track()``).
        every_s: Interval in seconds between saves of tracked state.

    >>> CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min").num_to_keep
    2
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: Literal["max", "min"] = "max"
    every_reports: int | None = None
    every_s: float | None = None

    def __post_init__(self) -> None:
        n = self.num_to_keep
        if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 0):
            raise ConfigError(f"num_to_keep must be None (all), 0 (none on disk) or a positive number, got {n!r}")
        every = self.every_reports
        if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
            raise ConfigError(f"every_reports must be None or a positive number, got {every!r}")
        _check_seconds("every_s", self.every_s)
        key = self.checkpoint_score_attribute
        if key is not None and not isinstance(key, str):
            raise ConfigError(f"checkpoint_score_attribute must be the name of a metric, got {key!r}")
        if self.checkpoint_score_order not in ("max", "min"):
            raise ConfigError(f"checkpoint_score_order must be 'max' or 'min', got {self.checkpoint_score_order!r}")


@known_options_only
@dataclass(frozen=True)
class LoggingConfig:
    """Which events of a run are logged; the console shows worker output at every level below ERROR.

    Events are records of the logger ``headway.run`` (docs/logging.md). A RunConfig without a LoggingConfig takes the
    level from the environment variable ``HEADWAY_LOG_LEVEL``.

    >>> LoggingConfig("WARNING").log_level
    'WARNING'
    """

    log_level: str = "INFO"

    def __post_init__(self) -> None:
        if self.log_level not in LEVELS:
            raise ConfigError(f"log_level must be one of {', '.join(LEVELS)}, got {self.log_level!r}")


def _default_logging() -> LoggingConfig:
    level = wanted_log_level()
    if level.upper() not in LEVELS:
        raise ConfigError(f"HEADWAY_LOG_LEVEL must be one of {', '.join(LEVELS)}, got {level!r}")
    return LoggingConfig(level.upper())


@known_options_only
@dataclass(frozen=True)
class RunConfig:
    """The name and storage of a run, and its behavior on failures.

    Args:
        name: The name of the run directory. If a run of this name exists, it is resumed. Default: a new name.
        storage_path: A directory, or a URI (``s3://bucket/runs``, ``gs://``, ``abfs://``). Default:
            ``HEADWAY_RESULTS`` if set, otherwise ``~/headway_results``.
        storage_filesystem: The pyarrow or fsspec filesystem that contains storage_path.
        failure_config: Limits on restarts.
        checkpoint_config: Which checkpoints are kept.
        logging_config: The level of events that are logged. Default: ``HEADWAY_LOG_LEVEL`` if set, otherwise INFO.
        callbacks: Instances of :class:`~headway.train.UserCallback`.
        worker_runtime_env: ``{"env_vars": {...}}``: environment variables of the workers.
        resume: Whether a run of this name may exist (``"auto"``), must exist (``"must"``) or must not (``"never"``).
        trust: Whether to resume a run even if another user owns its directory, and to open its pickles even if no
            signature proves that your own runs wrote them. Pickles run code.

    >>> RunConfig(name="digits", storage_path="/tmp/runs").path.as_posix()
    '/tmp/runs/digits'
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | None = None
    storage_filesystem: Any = None
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging_config: LoggingConfig = field(default_factory=_default_logging)
    callbacks: Sequence[Any] = ()
    worker_runtime_env: Mapping[str, Any] = field(default_factory=dict)
    resume: Resume = "auto"
    trust: bool = False

    def __post_init__(self) -> None:
        for name, kind in (
            ("failure_config", FailureConfig),
            ("checkpoint_config", CheckpointConfig),
            ("logging_config", _default_logging),
            ("callbacks", tuple),
            ("worker_runtime_env", dict),
        ):
            if getattr(self, name) is None:
                object.__setattr__(self, name, kind())
        if not isinstance(self.callbacks, list | tuple):
            raise ConfigError(f"callbacks must be a list of UserCallback, got {self.callbacks!r}")
        object.__setattr__(self, "callbacks", tuple(self.callbacks))
        _check_name(self.name)
        _check_run_parts(self)

    @property
    def is_local(self) -> bool:
        """Whether runs are stored in a directory on this machine."""
        if self.storage_filesystem is not None:
            return is_local_filesystem(self.storage_filesystem)
        return self.storage_path is None or scheme_of(os.fspath(self.storage_path)) in ("", "file")

    @property
    def storage(self) -> Path:
        """The directory for runs; only for local storage."""
        assert self.is_local
        return results_folder() if self.storage_path is None else local_path(self.storage_path)

    @property
    def path(self) -> Path:
        """The run directory; only for a run with a name."""
        assert self.name is not None
        return self.storage / self.name

    @property
    def env_vars(self) -> dict[str, str]:
        return dict(self.worker_runtime_env.get("env_vars", {}))


def _check_name(name: object) -> None:
    if name is None:
        return
    if not isinstance(name, str) or not name.strip() or name in (".", "..") or re.search(r"[/\\\0-\x1f\x7f]", name):
        raise ConfigError(f"name must be a plain directory name without slashes or control characters, got {name!r}")
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:
        raise ConfigError(f"name must be text that a filesystem can encode, got {name!r}") from None
    if size > LONGEST_NAME:
        raise ConfigError(f"name must have at most {LONGEST_NAME} bytes, got {size}: {name[:30]!r}…")


def _check_run_parts(config: RunConfig) -> None:
    for name, kind in (
        ("failure_config", FailureConfig),
        ("checkpoint_config", CheckpointConfig),
        ("logging_config", LoggingConfig),
    ):
        if not isinstance(getattr(config, name), kind):
            raise ConfigError(f"{name} must be a {kind.__name__}, got {getattr(config, name)!r}")
    if not isinstance(config.trust, bool):
        raise ConfigError(f"trust must be True or False, got {config.trust!r}")
    if config.resume not in get_args(Resume):
        raise ConfigError(f"resume must be one of {', '.join(get_args(Resume))}, got {config.resume!r}")
    if config.resume == "must" and config.name is None:
        raise ConfigError('resume="must" needs the name of the run to resume: set RunConfig(name=...)')
    _check_runtime_env(config.worker_runtime_env)
    if config.storage_path is not None:
        _check_storage_path(config)
    elif config.storage_filesystem is not None and not config.is_local:
        raise ConfigError("storage_filesystem needs a storage_path: the directory for runs on that filesystem")


def _check_runtime_env(env: Mapping[str, Any]) -> None:
    if not isinstance(env, Mapping) or set(env) - {"env_vars"}:
        raise ConfigError(f'worker_runtime_env takes {{"env_vars": {{...}}}}, got {env!r}')
    check_env_vars("worker_runtime_env", env.get("env_vars", {}))


def check_env_vars(owner: str, variables: object) -> None:
    if not isinstance(variables, Mapping):
        raise ConfigError(f"{owner} env_vars must be a dict of strings, got {variables!r}")
    for name, value in variables.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(f"{owner} env_vars must be strings, got {name!r}: {value!r}")


def _check_storage_path(config: RunConfig) -> None:
    path = config.storage_path
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise ConfigError(f"storage_path must be a path or a URI like s3://bucket/runs, got {path!r}")
    if config.storage_filesystem is None:
        refuse_single_slash(text, "storage_path ")
    scheme = scheme_of(text)
    if config.storage_filesystem is not None and scheme:
        raise ConfigError(f"storage_path must be a path on storage_filesystem, without {scheme}://, got {text!r}")
    if scheme not in ("", "file") and not text.partition("://")[2].strip("/"):
        raise ConfigError(f"storage_path {text!r} has no bucket name: use {scheme}://bucket/directory")


def scheme_of(path: str) -> str:
    """The scheme of a URI: ``"s3"`` for ``s3://bucket/runs``; empty for a plain path."""
    scheme, separator, _ = path.partition("://")
    return scheme.lower() if separator else ""


def refuse_single_slash(path: str, what: str = "") -> None:
    """ConfigError for ``s3:/bucket``, which would otherwise be a directory named ``s3:`` on this machine."""
    if found := re.match(r"([A-Za-z][\w+.-]*):/(?!/)", path):
        scheme, rest = found[1], path[found.end() :]
        meant = f"{scheme}:///{rest}" if scheme.lower() == "file" else f"{scheme}://{rest}"
        raise ConfigError(
            f"{what}{path!r} has only one slash after {scheme}: did you mean {meant!r}? "
            f"(a directory of this name on this machine is './{path}')"
        )


def is_local_filesystem(filesystem: Any) -> bool:
    """Whether this is pyarrow's or fsspec's local filesystem."""
    protocol = getattr(filesystem, "protocol", ())
    names = (protocol,) if isinstance(protocol, str) else protocol
    return getattr(filesystem, "type_name", None) == "local" or "file" in names


def local_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path that a path or a ``file://`` URI refers to."""
    text = os.fspath(path)
    refuse_single_slash(text)
    return expanded(text.partition("://")[2] if scheme_of(text) else text)


def chosen_engine(scaling: ScalingConfig) -> str:
    """``"local"`` or ``"inline"``: the config's choice, otherwise ``HEADWAY_ENGINE``'s, otherwise local."""
    name = wanted_engine() if scaling.engine == "auto" else scaling.engine
    if name not in ENGINES:
        raise ConfigError(f"HEADWAY_ENGINE must be one of {', '.join(ENGINES)}, got {name!r}")
    if scaling.max_workers == 0:
        return "inline"
    return "local" if name == "auto" else name
