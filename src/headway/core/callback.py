"""What a user may hang onto a run: called in the driver's process, never able to hurt the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.core.config import RunConfig, ScalingConfig


@dataclass(frozen=True, kw_only=True)
class TrainRunContext:
    """The run a callback is called for: its identity and what was asked for."""

    run_id: str
    run_path: str = ""  # the run directory, on this machine
    run_config: RunConfig
    scaling_config: ScalingConfig
    train_loop_config: Any = None  # a dict, or the user's own object
    backend_config: Any = None
    dataset_config: Any = None


class UserCallback:
    """Override what you need. An exception in a callback is logged and written to the journal; the run continues.

    >>> class Print(UserCallback):
    ...     def after_report(self, run_context, metrics, checkpoint):
    ...         print(metrics[0], checkpoint)
    """

    def before_run(self, run_context: TrainRunContext) -> None:
        """The run begins; no worker has been started."""

    def after_run(self, run_context: TrainRunContext, error: BaseException | None) -> None:
        """The run is over: what it failed of, or None.

        ``headway.train.Result.from_path(run_context.run_path).state`` tells how it ended: FINISHED, STOPPED, ….
        """

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any] | None], checkpoint: Any | None
    ) -> None:
        """A round is over: one entry per rank (None where a rank did not report), and the committed checkpoint."""

    def after_exception(self, run_context: TrainRunContext, worker_exceptions: dict[int, BaseException]) -> None:
        """An attempt failed: the exception of each rank that failed."""
