"""Where metrics may go beside the run directory: a table, TensorBoard, MLflow, Weights & Biases.

Each takes flat numbers and a step. Their packages are imported when one is made, and named when they are missing.
"""

from __future__ import annotations

import csv
import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.core import phrases
from headway.core.errors import ConfigError


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """All that is a number in there, nested ones by their path."""
    flat = phrases.flat(dict(metrics))
    found = {phrases.encodable(key): float(value) for key, value in flat.items() if isinstance(value, int | float)}
    return {key: value for key, value in found.items() if not math.isnan(value)}


def _needed(module: str, package: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{what} needs the package {package}: pip install {package}") from error


class Csv:
    """A line per call, under the columns of the first one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] | None = None

    def log(self, metrics: Mapping[str, Any]) -> None:
        row = phrases.flat(dict(metrics))
        with self._path.open(
            "a" if self._columns else "w", newline="", encoding="utf-8", errors="backslashreplace"
        ) as file:
            if self._columns is None:
                self._columns = list(row)
                csv.writer(file).writerow(self._columns)
            csv.writer(file).writerow([row.get(column, "") for column in self._columns])


class Tracker(ABC):
    """Somewhere else that metrics go to. One that could not be started has said so, and is silent from then on."""

    _started = False

    def start(self, name: str, config: Mapping[str, Any], folder: str) -> None:
        """A run of this name begins; its own folder is there."""
        self._start(name, config, folder)
        self._started = True

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        if self._started:
            self._log(metrics, step)

    def end(self, *, failed: bool) -> None:
        if self._started:
            self._started = False
            self._end(failed=failed)

    @abstractmethod
    def _start(self, name: str, config: Mapping[str, Any], folder: str) -> None: ...

    @abstractmethod
    def _log(self, metrics: Mapping[str, Any], step: int) -> None: ...

    @abstractmethod
    def _end(self, *, failed: bool) -> None: ...


class TensorBoard(Tracker):
    """Events in the run's folder, or in another; every name begins with ``prefix``."""

    def __init__(self, prefix: str, folder: str | None = None) -> None:
        self._writers = _needed("tensorboardX", "tensorboardX", "TensorBoard")
        self._prefix = prefix
        self._folder = folder
        self._writer: Any = None

    def _start(self, name: str, config: Mapping[str, Any], folder: str) -> None:
        self._writer = self._writers.SummaryWriter(self._folder or folder, flush_secs=30)

    def _log(self, metrics: Mapping[str, Any], step: int) -> None:
        for name, value in numbers(metrics).items():
            self._writer.add_scalar(self._prefix + name, value, global_step=step)
        self._writer.flush()

    def _end(self, *, failed: bool) -> None:
        self._writer.close()


class MLflow(Tracker):
    """A run of an experiment, by a client of its own: nothing global is touched."""

    def __init__(
        self,
        tracking_uri: str | None = None,
        registry_uri: str | None = None,
        experiment_id: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        save_artifact: bool = False,
    ) -> None:
        tracking = _needed("mlflow.tracking", "mlflow", "MLflow")
        self._client = tracking.MlflowClient(tracking_uri=tracking_uri, registry_uri=registry_uri)
        self._tags = dict(tags or {})
        self._experiment = experiment_id or self._experiment_called(experiment_name or "headway")
        self._save_artifact = save_artifact
        self._run = self._folder = ""

    def _experiment_called(self, name: str) -> str:
        known = self._client.get_experiment_by_name(name)
        found: str = known.experiment_id if known is not None else self._client.create_experiment(name)
        return found

    def _start(self, name: str, config: Mapping[str, Any], folder: str) -> None:
        run = self._client.create_run(self._experiment, run_name=name, tags=self._tags)
        self._run, self._folder = run.info.run_id, folder
        for key, value in phrases.flat(dict(config)).items():
            self._client.log_param(self._run, key, value)

    def _log(self, metrics: Mapping[str, Any], step: int) -> None:
        for name, value in numbers(metrics).items():
            self._client.log_metric(self._run, name, value, step=step)

    def _end(self, *, failed: bool) -> None:
        if self._save_artifact:
            self._client.log_artifacts(self._run, self._folder)
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


class Wandb(Tracker):
    """A run of a project of Weights & Biases."""

    def __init__(self, **init: Any) -> None:
        self._wandb = _needed("wandb", "wandb", "Weights & Biases")
        self._init = init
        self._run: Any = None

    def _start(self, name: str, config: Mapping[str, Any], folder: str) -> None:
        settings = {"name": name, "config": dict(config), "dir": folder, "reinit": "create_new", **self._init}
        self._run = self._wandb.init(**settings)

    def _log(self, metrics: Mapping[str, Any], step: int) -> None:
        self._run.log(numbers(metrics), step=step)

    def _end(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
