"""Trackers of metrics outside of the run directory: a table, TensorBoard, MLflow, Weights & Biases.

Their packages are imported when a tracker is made. The contract of a tracker is
:mod:`headway.testing.contracts.tracker`.
"""

from __future__ import annotations

import csv
import importlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from headway.core import phrases
from headway.core.errors import ConfigError


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the metrics, nested ones by their path; NaN is left out."""
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


class Tracker(Protocol):
    """A place outside of the run directory that a run's metrics go to. One thread calls it."""

    def start(self, name: str, config: Mapping[str, Any], folder: str) -> None:
        """Begin a run.

        Args:
            name: Of the run.
            config: What the training function was given.
            folder: The run directory; it exists.
        """

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Record the numbers among the metrics of one report."""

    def end(self, *, failed: bool) -> None:
        """The run is over; another one may be started."""


class TrackerGuard:
    """A tracker that is called only between a start that succeeded and the end of the run.

    A start that fails is reported once, by whoever runs the callback; the run's reports are then not logged.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._started = False

    def start(self, name: str, config: Mapping[str, Any], folder: str) -> None:
        self._tracker.start(name, config, folder)
        self._started = True

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        if self._started:
            self._tracker.log(metrics, step)

    def end(self, *, failed: bool) -> None:
        if self._started:
            self._started = False
            self._tracker.end(failed=failed)


class TensorBoard:
    """Events in the run's folder, or in another; every name begins with ``prefix``."""

    def __init__(self, prefix: str, folder: str | None = None) -> None:
        self._writers = _needed("tensorboardX", "tensorboardX", "TensorBoard")
        self._prefix = prefix
        self._folder = folder
        self._writer: Any = None

    def start(self, name: str, config: Mapping[str, Any], folder: str) -> None:
        self._writer = self._writers.SummaryWriter(self._folder or folder, flush_secs=30)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        for name, value in numbers(metrics).items():
            self._writer.add_scalar(self._prefix + name, value, global_step=step)
        self._writer.flush()

    def end(self, *, failed: bool) -> None:
        self._writer.close()


class MLflow:
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

    def start(self, name: str, config: Mapping[str, Any], folder: str) -> None:
        run = self._client.create_run(self._experiment, run_name=name, tags=self._tags)
        self._run, self._folder = run.info.run_id, folder
        for key, value in phrases.flat(dict(config)).items():
            self._client.log_param(self._run, _allowed(key), value)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        for name, value in numbers(metrics).items():
            self._client.log_metric(self._run, _allowed(name), value, step=step)

    def end(self, *, failed: bool) -> None:
        if self._save_artifact:
            self._client.log_artifacts(self._run, self._folder)
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


def _allowed(name: str) -> str:
    """A name that MLflow accepts: it refuses ``top@5``."""
    return re.sub(r"[^\w./: -]", "_", name)


class Wandb:
    """A run of a project of Weights & Biases."""

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
        self._run.finish(exit_code=int(failed))
