"""Callbacks of RaySGD v2: the base class, which sees the rounds of a run, and those that came with it."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.compat.sgd.rounds import Round, results_of
from headway.compat.torch_profiler import TRACES
from headway.core.callback import TrainRunContext, UserCallback
from headway.core.config_fields import fields_of
from headway.observe.trackers import Csv, MLflow, TensorBoard, Tracker, TrackerGuard, Wandb


class SGDCallback(UserCallback):
    """Base class: override what you need. Called in the driver, in the order of the reports.

    >>> class Print(SGDCallback):
    ...     def handle_result(self, results, **info):
    ...         print(results)
    """

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        """A run begins; ``logdir`` is its directory."""

    def handle_result(self, results: Round, **info: Any) -> None:
        """A round is over: a dict per rank."""

    def finish_training(self, error: bool = False, **info: Any) -> None:
        """The run is over."""

    def before_run(self, run_context: TrainRunContext) -> None:
        self.start_training(logdir=run_context.run_path, config=fields_of(run_context.train_loop_config) or {})

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any] | None], checkpoint: Any | None
    ) -> None:
        if (results := results_of(metrics)) is not None:
            self.handle_result(results)

    def after_run(self, run_context: TrainRunContext, error: BaseException | None) -> None:
        self.finish_training(error=error is not None)


class PrintCallback(SGDCallback):
    def handle_result(self, results: Round, **info: Any) -> None:
        print(json.dumps(results))


class _Logger(SGDCallback):
    """Writes what some workers report, into the run directory or another one."""

    def __init__(self, logdir: str | None = None, workers_to_log: int | Sequence[int] | None = 0) -> None:
        self._logdir = logdir
        self._workers = [workers_to_log] if isinstance(workers_to_log, int) else workers_to_log
        self._folder: Path | None = None

    @property
    def logdir(self) -> Path | None:
        """Where it writes, once a run has begun."""
        return self._folder

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        self._folder = Path(self._logdir or logdir)
        self._folder.mkdir(parents=True, exist_ok=True)

    def logged(self, results: Round) -> Round:
        return results if self._workers is None else [results[rank] for rank in self._workers]


class JsonLoggerCallback(_Logger):
    """All rounds as one JSON list, complete after every round: ``results.json``.

    Args:
        logdir: Where to write; None: the run directory.
        filename: Another name for the file.
        workers_to_log: The rank, or the ranks, whose results are written; None: all.
    """

    def __init__(
        self,
        logdir: str | None = None,
        filename: str | None = None,
        workers_to_log: int | Sequence[int] | None = 0,
    ) -> None:
        super().__init__(logdir, workers_to_log)
        self._filename = filename or "results.json"

    @property
    def log_path(self) -> Path | None:
        return self.logdir and self.logdir / self._filename

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        super().start_training(logdir, config, **info)
        assert self.log_path is not None
        self.log_path.write_text("[]")

    def handle_result(self, results: Round, **info: Any) -> None:
        """The list stays closed: the new round is written over its last bracket."""
        assert self.log_path is not None
        with self.log_path.open("rb+") as file:
            end = file.seek(-1, os.SEEK_END)
            file.write(("" if end == 1 else ", ").encode() + json.dumps(self.logged(results)).encode() + b"]")


class CSVCallback(_Logger):
    """A line per round of one worker: ``results.csv``.

    Args:
        logdir: Where to write; None: the run directory.
        filename: Another name for the file.
        worker_to_log: The rank whose results are written.
    """

    def __init__(self, logdir: str | None = None, filename: str | None = None, worker_to_log: int = 0) -> None:
        super().__init__(logdir, worker_to_log)
        self._filename = filename or "results.csv"

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        super().start_training(logdir, config, **info)
        assert self.logdir is not None
        self._csv = Csv(self.logdir / self._filename)

    def handle_result(self, results: Round, **info: Any) -> None:
        for result in self.logged(results):
            self._csv.log(result)


class _TrackingCallback(SGDCallback):
    """One worker's numbers go to a tracker."""

    def __init__(self, tracker: Tracker, worker_to_log: int) -> None:
        self._tracker = TrackerGuard(tracker)
        self._worker = worker_to_log

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        self._tracker.start(Path(logdir).name, config, logdir)

    def handle_result(self, results: Round, **info: Any) -> None:
        result = results[self._worker]
        self._tracker.log(result, result["_training_iteration"])

    def finish_training(self, error: bool = False, **info: Any) -> None:
        self._tracker.end(failed=error)


class TBXLoggerCallback(_TrackingCallback):
    """One worker's numbers as TensorBoard events, as ``ray/train/<name>``."""

    def __init__(self, logdir: str | None = None, worker_to_log: int = 0) -> None:
        super().__init__(TensorBoard("ray/train/", logdir), worker_to_log)


class MlflowCallback(_TrackingCallback):
    """One worker's numbers as an MLflow run.

    Args:
        tracking_uri: Of MLflow's tracking server.
        registry_uri: Accepted for compatibility; it has no effect.
        experiment_id: Of an experiment that exists.
        experiment_name: Of an experiment that exists, or that is created.
        tags: Of the MLflow run.
        worker_to_log: The rank whose numbers are logged.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        registry_uri: str | None = None,
        experiment_id: str | None = None,
        experiment_name: str | None = None,
        tags: dict[str, Any] | None = None,
        worker_to_log: int = 0,
    ) -> None:
        super().__init__(MLflow(tracking_uri, registry_uri, experiment_id, experiment_name, tags), worker_to_log)


class WandbCallback(_TrackingCallback):
    """One worker's numbers as a run of Weights & Biases.

    Args:
        project: Its name.
        group: Of runs.
        worker_to_log: The rank whose numbers are logged.
        **init: More keywords for ``wandb.init()``.
    """

    def __init__(self, project: str, group: str | None = None, worker_to_log: int = 0, **init: Any) -> None:
        super().__init__(Wandb(project=project, group=group, **init), worker_to_log)


class TorchTensorboardProfilerCallback(SGDCallback):
    """Writes what workers have profiled (``TorchWorkerProfiler``) into ``<run_dir>/pytorch_profiler``."""

    def __init__(self, logdir: str | None = None) -> None:
        self._logdir = logdir
        self._folder: Path | None = None

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        self._folder = Path(self._logdir or logdir, "pytorch_profiler")
        self._folder.mkdir(parents=True, exist_ok=True)

    def handle_result(self, results: Round, **info: Any) -> None:
        assert self._folder is not None
        for result in results:
            for name, content in result.get(TRACES, ()):
                (self._folder / Path(name).name).write_bytes(base64.b64decode(content))
