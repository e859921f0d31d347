"""Where metrics may go beside the run directory: a table, TensorBoard, MLflow, Weights & Biases.

Each takes flat numbers and a step. Their packages are imported when one is made, and named when they are missing.
"""

from __future__ import annotations

import csv
import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.core.errors import ConfigError
from headway.observe import words


def numbers(metrics: Mapping[str, Any], separator: str = "/") -> dict[str, float]:
    """All that is a number in there, nested ones by their path."""
    flat = words.flat(dict(metrics))
    found = {key: float(value) for key, value in flat.items() if isinstance(value, int | float)}
    return {key.replace("/", separator): value for key, value in found.items() if not math.isnan(value)}


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
        row = words.flat(dict(metrics))
        with self._path.open("a" if self._columns else "w", newline="") as file:
            if self._columns is None:
                self._columns = list(row)
                csv.writer(file).writerow(self._columns)
            csv.writer(file).writerow([row.get(column, "") for column in self._columns])


class TensorBoard:
    """Events in a folder."""

    def __init__(self, folder: Path) -> None:
        self._writer = _needed("tensorboardX", "tensorboardX", "TensorBoard").SummaryWriter(
            str(folder), flush_secs=30, write_to_disk=True
        )

    def log(self, metrics: Mapping[str, Any], step: int, prefix: str = "") -> None:
        for name, value in numbers(metrics).items():
            self._writer.add_scalar(prefix + name, value, global_step=step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """A run of an experiment, by a client of its own: nothing global is touched."""

    def __init__(
        self,
        tracking_uri: str | None,
        registry_uri: str | None,
        experiment_id: str | None,
        experiment_name: str,
        tags: Mapping[str, Any] | None = None,
    ) -> None:
        tracking = _needed("mlflow.tracking", "mlflow", "MLflow")
        self._client = tracking.MlflowClient(tracking_uri=tracking_uri, registry_uri=registry_uri)
        self._tags = dict(tags or {})
        self._experiment = experiment_id or self._experiment_called(experiment_name)
        self._run: str | None = None

    def _experiment_called(self, name: str) -> str:
        known = self._client.get_experiment_by_name(name)
        found: str = known.experiment_id if known is not None else self._client.create_experiment(name)
        return found

    def start(self, name: str, config: Mapping[str, Any]) -> None:
        run = self._client.create_run(self._experiment, run_name=name, tags=self._tags)
        self._run = run.info.run_id
        for key, value in words.flat(dict(config)).items():
            self._client.log_param(self._run, key, value)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        for name, value in numbers(metrics).items():
            self._client.log_metric(self._run, name, value, step=step)

    def log_artifacts(self, folder: Path) -> None:
        self._client.log_artifacts(self._run, str(folder))

    def end(self, *, failed: bool) -> None:
        if self._run is not None:
            self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")
            self._run = None


class Wandb:
    """A run of a project."""

    def __init__(self, **init: Any) -> None:
        self._wandb = _needed("wandb", "wandb", "Weights & Biases")
        self._init = init
        self._run: Any = None

    def start(self, name: str, config: Mapping[str, Any], folder: str) -> None:
        settings = {"name": name, "config": dict(config), "dir": folder, "reinit": "create_new", **self._init}
        self._run = self._wandb.init(**settings)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self._run.log(numbers(metrics), step=step)

    def end(self, *, failed: bool) -> None:
        if self._run is not None:
            self._run.finish(exit_code=int(failed))
            self._run = None
