"""The TorchTrainer of all versions of Ray, whose configs decide whether its runs are trials."""

from __future__ import annotations

from typing import Unpack

from headway.compat.air.config import AirRunConfig, AirScalingConfig
from headway.compat.air.trainers import fit_as_trial
from headway.core.errors import ConfigError
from headway.frameworks.torch_config import TorchConfig
from headway.train.result import Result
from headway.train.torch import TorchTrainer as _TorchTrainer
from headway.train.trainer import TrainerOptions, TrainingFunction, trainer_options


class TorchTrainer(_TorchTrainer):
    """See :class:`headway.train.torch.TorchTrainer`."""

    @trainer_options
    def __init__(
        self,
        train_loop_per_worker: TrainingFunction,
        *,
        torch_config: TorchConfig | None = None,
        torch_backend: TorchConfig | None = None,
        preprocessor: None = None,
        **options: Unpack[TrainerOptions],
    ) -> None:
        """Declare a run without starting anything.

        Args:
            train_loop_per_worker: The training function. It takes either no parameter or the ``train_loop_config``.
            torch_config: The config of the process group.
            torch_backend: An older name for ``torch_config``.
            preprocessor: Not supported; accepted as None.
        """
        if preprocessor is not None:
            raise ConfigError("preprocessor is not supported: map the dataset before you pass it to the trainer")
        if torch_backend is not None and torch_config is not None:
            raise ConfigError("torch_backend and torch_config mean the same: pass only one of them")
        super().__init__(train_loop_per_worker, torch_config=torch_config or torch_backend, **options)

    def fit(self) -> Result:
        request = self._request
        trial = isinstance(request.scaling, AirScalingConfig) or isinstance(request.run, AirRunConfig)
        return fit_as_trial(self) if trial else super().fit()
