"""What a training function may call. Everything here works in any process that runs one, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.storage.checkpoint import Checkpoint
from headway.train.context import TrainContext
from headway.worker.session import current


def report(metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
    """Tell the run how it goes, and perhaps hand it a checkpoint.

    Never waits for another rank: any rank may report, as often as it likes. Without a checkpoint it returns in
    microseconds; with one it returns when the files have been copied to the run's storage, so that the caller's own
    may go. Checkpoints that several ranks report under the same number (their n-th call) are merged into one.

    >>> import headway.train as train
    >>> def train_func():
    ...     for epoch in range(3):
    ...         train.report({"epoch": epoch})
    >>> train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(0)).fit().metrics
    {'epoch': 2}
    """
    current("headway.train.report").report(metrics, checkpoint)


def get_checkpoint() -> Checkpoint | None:
    """Where to go on: the checkpoint that this attempt began with, or the newest since that this rank had a part in.

    None at the very beginning of a run.
    """
    return current("headway.train.get_checkpoint").newest_checkpoint()


def get_context() -> TrainContext:
    """Ranks and names of this worker."""
    session = current("headway.train.get_context")
    return TrainContext(session.place, session.run, session.metadata)
