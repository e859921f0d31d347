"""The trainer for PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headway.core.config import RunConfig, ScalingConfig, refuse_unknown_keywords
from headway.core.errors import ConfigError
from headway.core.validation import ValidationConfig
from headway.frameworks.base import TorchConfig
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.train.datasets import DataConfig
from headway.train.trainer import DataParallelTrainer


class TorchTrainer(DataParallelTrainer):
    """Runs a PyTorch function on several workers, with ``torch.distributed`` ready before its first line.

    >>> import torch.distributed as dist
    >>> from headway.train import ScalingConfig
    >>> def train_func():
    ...     return dist.get_world_size()
    >>> TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit().return_value
    2
    """

    @refuse_unknown_keywords
    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[Any], Any],
        *,
        train_loop_config: object = None,
        torch_config: TorchConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        metadata: Mapping[str, Any] | None = None,
        validation_config: ValidationConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | None = None,
    ) -> None:
        if torch_config is not None and not isinstance(torch_config, TorchConfig):
            raise ConfigError(f"torch_config must be a TorchConfig, got {torch_config!r}")
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=torch_config or TorchConfig(),
            scaling_config=scaling_config,
            run_config=run_config,
            resume_from_checkpoint=resume_from_checkpoint,
            metadata=metadata,
            validation_config=validation_config,
            datasets=datasets,
            dataset_config=dataset_config,
        )
