"""Trackers, which record metrics outside of the run directory: a table, TensorBoard, MLflow, Weights & Biases.

A tracker's package is imported when the tracker is created. The contract of a tracker is
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
    """The metrics that are numbers. A nested metric is named by its path (``val/acc``). NaN is omitted."""
    flat = phrases.flat(dict(metrics))
    found = {phrases.encodable(key): float(value) for key, value in flat.items() if isinstance(value, int | float)}
    return {key: value for key, value in found.items() if not math.isnan(value)}


def _needed(module: str, package: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{what} needs the package {package}: pip install {package}") from error


class Csv:
    """A CSV file with a line per call; the first call determines the columns."""

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
    """A destination for a run's metrics outside of the run directory. All calls come from one thread."""

    def start(self, name: str, config: Mapping[str, Any], folder: str) -> None:
        """Start a run.

        Args:
            name: Name of the run.
            config: Config of the training function.
            folder: The run directory, which already exists.
        """

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Record the numbers among the metrics of one report."""

    def end(self, *, failed: bool) -> None:
        """End the run; another one may be started afterwards."""


class TrackerGuard:
    """Calls a tracker only between a successful start and the end of the run.

    If the start fails, the error is reported once, and the run's reports are not passed to the tracker.
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
    """Event files in the run directory, or in ``folder``; every name starts with ``prefix``."""

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
    """A run of an MLflow experiment. It uses its own client, so MLflow's global state is not changed."""

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
    """Replace the characters that MLflow rejects in names, such as the ``@`` in ``top@5``."""
    return re.sub(r"[^\w./: -]", "_", name)


class Wandb:
    """A run in a Weights & Biases project."""

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
