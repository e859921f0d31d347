"""Trainers: declarations of a function, its config and its scale, from which ``fit()`` makes a run.

The trainer of a framework adds the framework's config; all other options are shared (:class:`TrainerOptions`). The
machinery is imported when a run is made, so that importing ``headway.train`` stays cheap.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict, TypeVar, Unpack, get_args, get_origin, get_type_hints

from headway.core.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, refuse_unknown_keywords
from headway.core.errors import ConfigError, StorageError
from headway.core.schema.run_description import Opening
from headway.core.security.redaction import masked
from headway.core.task import Task
from headway.core.validation import ValidationConfig
from headway.frameworks.base import BackendConfig
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.run.description import config_of
from headway.storage.run.reader import RunReader
from headway.train.datasets import DataConfig
from headway.train.launch.packing import bind
from headway.train.launch.request import TrainRequest
from headway.train.result import Result
from headway.train.run_handle import Run

TrainingFunction = Callable[[], Any] | Callable[[Any], Any]
Init = TypeVar("Init", bound=Callable[..., None])


class TrainerOptions(TypedDict, total=False):
    """Keyword arguments of every trainer.

    Args:
        train_loop_config: The config for the function: a dict, a dataclass or any other object with fields.
        scaling_config: The number of workers, and the resources of each.
        run_config: The run's storage and name, and what happens when it fails.
        resume_from_checkpoint: The checkpoint to start from if the run has no checkpoint yet.
        metadata: What ``get_context().get_metadata()`` returns in the function.
        validation_config: The function that validates checkpoints for ``report(..., validation=True)``, while
            training continues.
        datasets: The datasets, by name. They are split among the workers, which get their shards with
            ``train.get_dataset_shard(name)``.
        dataset_config: Which datasets are split; every worker gets all rows of the others.
    """

    train_loop_config: object
    scaling_config: ScalingConfig | None
    run_config: RunConfig | None
    resume_from_checkpoint: Checkpoint | None
    metadata: Mapping[str, Any] | None
    validation_config: ValidationConfig | None
    datasets: Mapping[str, Any] | None
    dataset_config: DataConfig | None


def trainer_options(init: Init) -> Init:
    """Complete the constructor of a trainer that takes ``**options: Unpack[TrainerOptions]``.

    Its signature and docstring name every option, and the error for an unknown keyword suggests the nearest name.

    >>> @trainer_options
    ... def __init__(self, function, *, jax_config: dict | None = None, **options: Unpack[TrainerOptions]) -> None:
    ...     "Args: jax_config: ..."
    >>> [name for name in inspect.signature(__init__).parameters][:5]
    ['self', 'function', 'train_loop_config', 'jax_config', 'scaling_config']
    """
    own = [
        each for each in inspect.signature(init, eval_str=True).parameters.values() if each.kind is not each.VAR_KEYWORD
    ]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in get_type_hints(TrainerOptions).items()
    ]
    by_position = [each for each in own if each.kind is not each.KEYWORD_ONLY]
    of_framework = [each for each in own if each.kind is each.KEYWORD_ONLY]
    parameters = [*by_position, shared[0], *of_framework, *shared[1:]]
    init.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
    init.__annotations__ = {each.name: each.annotation for each in parameters[1:]} | {"return": None}
    described = inspect.cleandoc(TrainerOptions.__doc__ or "").partition("Args:\n")[2]
    init.__doc__ = f"{inspect.cleandoc(init.__doc__ or 'Args:')}\n{described}\n"
    return refuse_unknown_keywords(init)


class DataParallelTrainer:
    """A trainer that runs one function on several workers. It is the base class of all trainers.

    >>> from headway import train
    >>> def train_func(config):
    ...     train.report({"rate": config["rate"]})
    >>> trainer = DataParallelTrainer(
    ...     train_func, train_loop_config={"rate": 0.1}, scaling_config=train.ScalingConfig(num_workers=2)
    ... )
    >>> trainer.fit().metrics
    {'rate': 0.1}
    """

    kind: ClassVar[str] = ""  # prefix of the names of unnamed runs; empty: the class name

    @trainer_options
    def __init__(
        self,
        train_loop_per_worker: TrainingFunction,
        *,
        backend_config: BackendConfig | None = None,
        **options: Unpack[TrainerOptions],
    ) -> None:
        """Declare a run; nothing is started.

        Args:
            train_loop_per_worker: The training function. It takes no parameter, or one: the ``train_loop_config``.
            backend_config: How the workers form a group; None: they are plain processes.
        """
        checked("backend_config", backend_config, BackendConfig)
        _check_options(options)
        bind(train_loop_per_worker, options.get("train_loop_config"))  # for its errors
        self._request = TrainRequest(
            kind=self.kind or type(self).__name__,
            task=Task(
                call=train_loop_per_worker,
                backend=backend_config,
                metadata=dict(options.get("metadata") or {}),
                datasets=options.get("datasets") or {},
            ),
            train_loop_config=options.get("train_loop_config"),
            scaling=options.get("scaling_config") or ScalingConfig(),
            run=options.get("run_config") or RunConfig(),
            checkpoint=options.get("resume_from_checkpoint"),
            validation=options.get("validation_config"),
            data=options.get("dataset_config") or DataConfig(),
        )

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> bool:
        """Whether ``path`` contains a run that ``restore`` can resume."""
        try:
            return bool(RunReader.at(path, storage_filesystem).description)
        except (StorageError, OSError):
            return False

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        train_loop_per_worker: TrainingFunction,
        *,
        train_loop_config: object = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        storage_filesystem: Any = None,
        **options: Any,
    ) -> Self:
        """Create the trainer of a run that was interrupted or failed; ``fit()`` resumes the run.

        Configs that are not passed are taken from the last opening. Run directories do not contain code, secrets or
        objects, only their fields as text, so a ``train_loop_config`` that contains any must be passed again.
        """
        record = RunReader.at(path, storage_filesystem)
        last = record.opening
        config = _former_config(last) if train_loop_config is None else train_loop_config
        scaling = scaling_config or config_of(record.path, last, "scaling_config", ScalingConfig)
        run = replace(
            run_config or _former_run_config(record.path, last),
            name=record.name,
            storage_path=os.fspath(path).rstrip("/").rpartition("/")[0] if record.is_copy else record.path.parent,
            storage_filesystem=storage_filesystem,
            resume="must",
        )
        return cls(train_loop_per_worker, train_loop_config=config, scaling_config=scaling, run_config=run, **options)

    def fit(self) -> Result:
        """Run to completion. A failed run raises TrainingFailedError; Ctrl-C ends the run cleanly, as ABORTED."""
        from headway.train.launch.fit import prepare

        return prepare(self._request).run()

    def start(self) -> Run:
        """Run in the background; the handle yields reports as they arrive, and waits for the result."""
        return Run(self._request)


def _former_config(last: Opening) -> dict[str, object] | None:
    config = last.train_loop_config
    incomplete = [name for name in last.train_loop_config_incomplete or () if name] or list(masked(config))
    if kind := last.train_loop_config_type:
        why = f"it was a {kind}, of which only the fields are stored"
    elif incomplete:
        why = f"the run does not store secrets and objects, such as {', '.join(map(repr, incomplete[:5]))}"
    else:
        return config
    raise ConfigError(f"pass train_loop_config to restore() again: {why}")


def _former_run_config(run: Path, last: Opening) -> RunConfig:
    return RunConfig(
        failure_config=config_of(run, last, "failure_config", FailureConfig),
        checkpoint_config=config_of(run, last, "checkpoint_config", CheckpointConfig),
    )


ConfigT = TypeVar("ConfigT")


def checked(name: str, value: ConfigT | None, kind: type[Any]) -> ConfigT | None:
    """Return the value of an option; raise ConfigError if it is neither None nor of this type."""
    if value is not None and not isinstance(value, kind):
        wanted = "dict" if issubclass(kind, Mapping) else kind.__name__
        raise ConfigError(f"{name} must be a {wanted}, got {value!r}")
    return value


def _check_options(options: TrainerOptions) -> None:
    for name, hint in get_type_hints(TrainerOptions).items():
        if hint is not object:
            kind = get_args(hint)[0]
            checked(name, options.get(name), get_origin(kind) or kind)
    for name in options.get("datasets") or {}:
        if not isinstance(name, str):
            raise ConfigError(f"datasets must be a dict of names and datasets, got the name {name!r}")
    checkpoint = options.get("resume_from_checkpoint")
    place = checkpoint.get_internal_representation() if checkpoint is not None else ("", "")
    if place[0] == "local_path" and not os.path.isdir(place[1]):
        raise ConfigError(f"resume_from_checkpoint: there is no directory {place[1]}")
