"""Tune-style callbacks, for ``RunConfig(callbacks=[...])``, to which a run appears as a trial."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.compat.air.trials import Trial
from headway.core.callback import TrainRunContext, UserCallback
from headway.observe.trackers import Csv, MLflow, TensorBoard, Tracker, TrackerGuard, Wandb


class Callback(UserCallback):
    """A base class whose methods are called in the driver, in order. Collected data can be read after ``fit()``."""

    _trial: Trial

    def setup(self, stop: Any = None, num_samples: int | None = None, **info: Any) -> None:
        """Called before everything else."""

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called when the run begins."""

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Called after a report of rank 0; ``trial.last_result`` is still its previous report."""

    def on_checkpoint(self, iteration: int, trials: list[Trial], trial: Trial, checkpoint: Any, **info: Any) -> None:
        """Called when a checkpoint has been committed."""

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called when the run has finished."""

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called when the run has failed."""

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """Called after everything else."""

    def before_run(self, run_context: TrainRunContext) -> None:
        self._trial = trial = Trial(run_context)
        self.setup()
        self.on_trial_start(iteration=0, trials=[trial], trial=trial)

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any] | None], checkpoint: Any | None
    ) -> None:
        trial = self._trial
        if metrics[0] is None:
            return
        result = trial.result_of(metrics[0])
        self.on_trial_result(iteration=trial.iteration, trials=[trial], trial=trial, result=result)
        trial.last_result = result
        if checkpoint is not None:
            self.on_checkpoint(iteration=trial.iteration, trials=[trial], trial=trial, checkpoint=checkpoint)

    def after_run(self, run_context: TrainRunContext, error: BaseException | None) -> None:
        trial = self._trial
        trial.status = "ERROR" if error is not None else "TERMINATED"
        handler = self.on_trial_error if error is not None else self.on_trial_complete
        handler(iteration=trial.iteration, trials=[trial], trial=trial)
        self.on_experiment_end(trials=[trial])


class LoggerCallback(Callback):
    """The higher-level base class, with a start, results, saves and an end."""

    def log_trial_start(self, trial: Trial) -> None:
        """Called when the run begins."""

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Called after a report of rank 0."""

    def log_trial_save(self, trial: Trial) -> None:
        """Called when a checkpoint has been committed."""

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """Called when the run has ended."""

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_start(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self.log_trial_result(iteration, trial, result)

    def on_checkpoint(self, iteration: int, trials: list[Trial], trial: Trial, checkpoint: Any, **info: Any) -> None:
        self.log_trial_save(trial)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_end(trial, failed=False)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_end(trial, failed=True)


class TuneJsonLogger(LoggerCallback):
    """A logger that writes a line of JSON per report to ``result.json``, and the config to ``params.json``."""

    def log_trial_start(self, trial: Trial) -> None:
        Path(trial.logdir, "params.json").write_text(json.dumps(trial.config, default=repr))
        Path(trial.logdir, "result.json").touch()

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        with Path(trial.logdir, "result.json").open("a") as file:
            file.write(json.dumps(result) + "\n")


class CSVLoggerCallback(LoggerCallback):
    """A logger that writes a line per report to ``progress.csv``."""

    def log_trial_start(self, trial: Trial) -> None:
        self._csv = Csv(Path(trial.logdir, "progress.csv"))

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        self._csv.log(result)


class _TrackingLogger(LoggerCallback):
    """A logger that passes reports to a tracker."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = TrackerGuard(tracker)

    def log_trial_start(self, trial: Trial) -> None:
        self._tracker.start(str(trial), trial.config, trial.logdir)

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        self._tracker.log(result, int(result["training_iteration"]))

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        self._tracker.end(failed=failed)


class TuneTensorBoardLogger(_TrackingLogger):
    """A logger that writes numbers as TensorBoard events, as ``ray/tune/<name>``, to the run's directory."""

    def __init__(self) -> None:
        super().__init__(TensorBoard("ray/tune/"))


class MLflowLoggerCallback(_TrackingLogger):
    """A logger to a run of an MLflow experiment; ``save_artifact`` adds the run's directory at the end."""

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: dict[str, Any] | None = None,
        save_artifact: bool = False,
    ) -> None:
        super().__init__(MLflow(tracking_uri, registry_uri, None, experiment_name, tags, save_artifact))


class WandbLoggerCallback(_TrackingLogger):
    """A logger to a run of a Weights & Biases project."""

    def __init__(self, project: str | None = None, group: str | None = None, **init: Any) -> None:
        super().__init__(Wandb(project=project, group=group, **init))


# Scripts import the classes under these names, which RaySGD also uses.
JsonLoggerCallback = TuneJsonLogger
TBXLoggerCallback = TuneTensorBoardLogger
