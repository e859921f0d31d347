"""What a trainer declares, as a value."""

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
        kind: Who requests it: the class of a trainer, or a script. Prefix of the names of unnamed runs.
        task: What every worker is to do; its function is not bound to its config yet.
        train_loop_config: A dict, or an object of the user's own.
        scaling: How many workers, and what each needs.
        run: Where the run is stored and what happens when it fails.
        checkpoint: Where to start if the run has no checkpoint of its own.
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
