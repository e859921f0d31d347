"""The trainer for PyTorch."""

from __future__ import annotations

from typing import Unpack

from headway.frameworks.torch_config import TorchConfig
from headway.train.trainer import DataParallelTrainer, TrainerOptions, TrainingFunction, checked, trainer_options


class TorchTrainer(DataParallelTrainer):
    """A trainer that runs a PyTorch function on several workers, with ``torch.distributed`` already initialized.

    >>> import torch.distributed as dist
    >>> from headway.train import ScalingConfig
    >>> def train_func():
    ...     return dist.get_world_size()
    >>> TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit().return_value
    2
    """

    @trainer_options
    def __init__(
        self,
        train_loop_per_worker: TrainingFunction,
        *,
        torch_config: TorchConfig | None = None,
        **options: Unpack[TrainerOptions],
    ) -> None:
        """Declare a run; nothing is started.

        Args:
            train_loop_per_worker: The training function. It takes no parameter, or one: the ``train_loop_config``.
            torch_config: How the process group is made.
        """
        config = checked("torch_config", torch_config, TorchConfig) or TorchConfig()
        super().__init__(train_loop_per_worker, backend_config=config, **options)
