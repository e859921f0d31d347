"""A trainer is a declaration: a function, its config, its scale. ``fit()`` makes a run of it.

The machinery is imported when a run is made, so that importing ``headway.train`` stays cheap.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from headway.core.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, refuse_unknown_keywords
from headway.core.errors import ConfigError, StorageError
from headway.core.security.redaction import masked
from headway.core.task import Task
from headway.core.validation import ValidationConfig
from headway.frameworks.base import BackendConfig
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.run.description import config_of
from headway.storage.run.reader import RunReader
from headway.train.datasets import DataConfig
from headway.train.launch.request import TrainRequest
from headway.train.result import Result
from headway.train.run_handle import Run


class DataParallelTrainer:
    """Runs one function on several workers. The base of all trainers; without a backend the workers are just processes.

    ``train_loop_per_worker`` takes no parameter, or one: the ``train_loop_config``, which is a dict, a dataclass or any
    other object with fields; the function gets the object itself. ``validation_config`` is what
    ``report(..., validation=True)`` has checkpoints validated with, while training goes on. ``datasets`` are dealt out
    among the workers, which find their parts with ``train.get_dataset_shard(name)``.

    >>> from headway import train
    >>> def train_func(config):
    ...     train.report({"rate": config["rate"]})
    >>> trainer = DataParallelTrainer(
    ...     train_func, train_loop_config={"rate": 0.1}, scaling_config=train.ScalingConfig(num_workers=2)
    ... )
    >>> trainer.fit().metrics
    {'rate': 0.1}
    """

    @refuse_unknown_keywords
    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[Any], Any],
        *,
        train_loop_config: object = None,
        backend_config: BackendConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        metadata: Mapping[str, Any] | None = None,
        validation_config: ValidationConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | None = None,
    ) -> None:
        _check("datasets", datasets, Mapping)
        _check("dataset_config", dataset_config, DataConfig)
        _check("backend_config", backend_config, BackendConfig)
        _check("scaling_config", scaling_config, ScalingConfig)
        _check("run_config", run_config, RunConfig)
        _check("resume_from_checkpoint", resume_from_checkpoint, Checkpoint)
        _check("metadata", metadata, Mapping)
        _check("validation_config", validation_config, ValidationConfig)
        given = resume_from_checkpoint.get_internal_representation() if resume_from_checkpoint else ("", "")
        if given[0] == "local_path" and not os.path.isdir(given[1]):
            raise ConfigError(f"resume_from_checkpoint: there is no folder {given[1]}")
        self._request = TrainRequest(
            kind=type(self).__name__,
            task=Task(
                call=train_loop_per_worker,
                backend=backend_config,
                metadata=dict(metadata or {}),
                datasets=datasets or {},
            ),
            train_loop_config=train_loop_config,
            scaling=scaling_config or ScalingConfig(),
            run=run_config or RunConfig(),
            checkpoint=resume_from_checkpoint,
            validation=validation_config,
            data=dataset_config or DataConfig(),
        )

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> bool:
        """Whether a run lies there that ``restore`` would go on with."""
        try:
            RunReader.at(path, storage_filesystem).description["openings"]
        except (StorageError, OSError, KeyError, TypeError):
            return False
        return True

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        train_loop_per_worker: Callable[[], Any] | Callable[[Any], Any],
        *,
        train_loop_config: object = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        storage_filesystem: Any = None,
        **options: Any,
    ) -> Self:
        """The trainer of a run that was interrupted or failed; ``fit()`` goes on with it.

        Configs that are not given are those of last time. The function is: code is not kept in run directories. Nor are
        secrets and objects, only their fields as text: a ``train_loop_config`` with some in it must be given again.
        """
        record = RunReader.at(path, storage_filesystem)
        last = (record.description["openings"] or [{}])[-1]
        config = _former_config(last) if train_loop_config is None else train_loop_config
        scaling = scaling_config or config_of(record.path, last, "scaling_config", ScalingConfig)
        run = replace(
            run_config or _former_run_config(record.path, last),
            name=record.name,
            storage_path=os.fspath(path).rstrip("/").rpartition("/")[0] if record.keeper else record.path.parent,
            storage_filesystem=storage_filesystem,
            resume="must",
        )
        return cls(train_loop_per_worker, train_loop_config=config, scaling_config=scaling, run_config=run, **options)

    def fit(self) -> Result:
        """Run to the end. A failed run raises TrainingFailedError; Ctrl-C ends it in order, as ABORTED."""
        from headway.train.launch.fit import prepare

        return prepare(self._request).run()

    def start(self) -> Run:
        """Run in the background; the handle gives its reports as they come, and its result."""
        return Run(self._request)


def _former_config(last: dict[str, Any]) -> dict[str, Any] | None:
    config: dict[str, Any] | None = last.get("train_loop_config")
    incomplete = [name for name in last.get("train_loop_config_incomplete", []) if name] or list(masked(config))
    if kind := last.get("train_loop_config_type"):
        why = f"it was a {kind}, of which only the fields are kept"
    elif incomplete:
        why = f"the run does not keep secrets and objects, as {', '.join(map(repr, incomplete[:5]))}"
    else:
        return config
    raise ConfigError(f"give restore(train_loop_config=...) again: {why}")


def _former_run_config(run: Path, last: dict[str, Any]) -> RunConfig:
    return RunConfig(
        failure_config=config_of(run, last, "failure_config", FailureConfig),
        checkpoint_config=config_of(run, last, "checkpoint_config", CheckpointConfig),
    )


def _check(name: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        wanted = "dict" if kind is Mapping else kind.__name__
        raise ConfigError(f"{name} must be a {wanted}, got {value!r}")
