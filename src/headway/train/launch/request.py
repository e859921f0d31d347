"""The request of a run: a trainer's declaration as a value."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.config import RunConfig, ScalingConfig
from headway.core.task import Task
from headway.core.validation import ValidationConfig
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.train.datasets import DataConfig


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """A requested run.

    Args:
        kind: The class of the requesting trainer, or a script. It is the prefix of the names of unnamed runs.
        task: The task of every worker; its function is not yet bound to its config.
        train_loop_config: A dict, or an object of a user's class.
        scaling: The number of workers, and the resources of each.
        run: Where the run is stored and what happens when it fails.
        checkpoint: The checkpoint to start from if the run has no checkpoint yet.
        validation: The function that validates checkpoints, if there is one.
        data: How the datasets are split.
    """

    kind: str
    task: Task
    train_loop_config: object = None
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    run: RunConfig = field(default_factory=RunConfig)
    checkpoint: Checkpoint | None = None
    validation: ValidationConfig | None = None
    data: DataConfig = field(default_factory=DataConfig)
