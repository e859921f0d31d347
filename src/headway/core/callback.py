"""The base class of callbacks, which are called in the driver, and the run context that they receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.core.config import RunConfig, ScalingConfig


@dataclass(frozen=True, kw_only=True)
class TrainRunContext:
    """The run that a callback is called for: its identity and its configuration.

    Args:
        run_id: The run's random id.
        run_path: The run directory, on this machine.
        run_config: The RunConfig that was passed to the trainer.
        scaling_config: The ScalingConfig that was passed to the trainer.
        train_loop_config: A dict, or the user's own object.
        backend_config: How the workers form a group; None if they are plain processes.
        dataset_config: Which datasets are split.
    """

    run_id: str
    run_path: str = ""
    run_config: RunConfig
    scaling_config: ScalingConfig
    train_loop_config: Any = None
    backend_config: Any = None
    dataset_config: Any = None


class UserCallback:
    """The base class of callbacks. Override the methods that you need.

    An exception in a callback is logged and written to the journal; the run continues.

    >>> class Print(UserCallback):
    ...     def after_report(self, run_context, metrics, checkpoint):
    ...         print(metrics[0], checkpoint)
    """

    def before_run(self, run_context: TrainRunContext) -> None:
        """Called when the run starts, before workers are started."""

    def after_run(self, run_context: TrainRunContext, error: BaseException | None) -> None:
        """Called when the run has ended. ``error`` is the error of a failed run, otherwise None.

        ``headway.train.Result.from_path(run_context.run_path).state`` is its final state: FINISHED, STOPPED, ….
        """

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any] | None], checkpoint: Any | None
    ) -> None:
        """Called for each round: the metrics of each rank (None if it did not report), and the committed checkpoint."""

    def after_exception(self, run_context: TrainRunContext, worker_exceptions: dict[int, BaseException]) -> None:
        """Called when an attempt has failed, with the exception of each rank that failed."""
