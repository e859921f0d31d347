"""RaySGD v2 callbacks: the base class, and the callbacks that RaySGD shipped."""

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
    """A base class whose methods are called in the driver, in the order of the reports.

    >>> class Print(SGDCallback):
    ...     def handle_result(self, results, **info):
    ...         print(results)
    """

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        """Called when a run begins; ``logdir`` is its directory."""

    def handle_result(self, results: Round, **info: Any) -> None:
        """Called after each round; ``results`` has one dict per rank."""

    def finish_training(self, error: bool = False, **info: Any) -> None:
        """Called when the run has ended."""

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
    """A logger that writes the reports of some workers to the run directory or a different one."""

    def __init__(self, logdir: str | None = None, workers_to_log: int | Sequence[int] | None = 0) -> None:
        self._logdir = logdir
        self._workers = [workers_to_log] if isinstance(workers_to_log, int) else workers_to_log
        self._folder: Path | None = None

    @property
    def logdir(self) -> Path | None:
        """The directory to which it writes; None until a run begins."""
        return self._folder

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        self._folder = Path(self._logdir or logdir)
        self._folder.mkdir(parents=True, exist_ok=True)

    def logged(self, results: Round) -> Round:
        return results if self._workers is None else [results[rank] for rank in self._workers]


class JsonLoggerCallback(_Logger):
    """A logger that writes all rounds to ``results.json`` as one JSON list, which is complete after every round.

    Args:
        logdir: The directory to write to; None: the run directory.
        filename: The file name to use instead of ``results.json``.
        workers_to_log: The rank or ranks whose results are written; None: all.
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
        """Add a round to the list, overwriting its closing bracket with the round and a new bracket."""
        assert self.log_path is not None
        with self.log_path.open("rb+") as file:
            end = file.seek(-1, os.SEEK_END)
            file.write(("" if end == 1 else ", ").encode() + json.dumps(self.logged(results)).encode() + b"]")


class CSVCallback(_Logger):
    """A logger that writes a line per round of one worker to ``results.csv``.

    Args:
        logdir: The directory to write to; None: the run directory.
        filename: The file name to use instead of ``results.csv``.
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
    """A callback that passes one worker's numbers to a tracker."""

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
    """A callback that writes one worker's numbers as TensorBoard events, as ``ray/train/<name>``."""

    def __init__(self, logdir: str | None = None, worker_to_log: int = 0) -> None:
        super().__init__(TensorBoard("ray/train/", logdir), worker_to_log)


class MlflowCallback(_TrackingCallback):
    """A callback that logs one worker's numbers to an MLflow run.

    Args:
        tracking_uri: The URI of the MLflow tracking server.
        registry_uri: Accepted for compatibility with Ray; ignored.
        experiment_id: The ID of an existing experiment.
        experiment_name: The name of the experiment, which is created if it does not exist.
        tags: Tags for the MLflow run.
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
    """A callback that logs one worker's numbers to a Weights & Biases run.

    Args:
        project: The name of the W&B project.
        group: The W&B run group.
        worker_to_log: The rank whose numbers are logged.
        **init: Additional keyword arguments for ``wandb.init()``.
    """

    def __init__(self, project: str, group: str | None = None, worker_to_log: int = 0, **init: Any) -> None:
        super().__init__(Wandb(project=project, group=group, **init), worker_to_log)


class TorchTensorboardProfilerCallback(SGDCallback):
    """A callback that writes the workers' traces (``TorchWorkerProfiler``) to ``<run_dir>/pytorch_profiler``."""

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
