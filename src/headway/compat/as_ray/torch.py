"""The TorchTrainer of every generation: the configs that it is given decide whether its runs are trials."""

from __future__ import annotations

from typing import Any

from headway.compat.air.config import RunConfig, ScalingConfig
from headway.compat.air.trainers import fit_as_trial
from headway.core.errors import ConfigError
from headway.train.result import Result
from headway.train.torch import TorchTrainer as _TorchTrainer


class TorchTrainer(_TorchTrainer):
    """See :class:`headway.train.torch.TorchTrainer`. ``torch_backend`` is an older name for ``torch_config``."""

    def __init__(self, *args: Any, torch_backend: Any = None, preprocessor: None = None, **options: Any) -> None:
        if preprocessor is not None:
            raise ConfigError("preprocessor is not there: map the dataset before it is given to the trainer")
        if torch_backend is not None:
            if options.get("torch_config") is not None:
                raise ConfigError("torch_backend and torch_config are the same thing: give one of them")
            options["torch_config"] = torch_backend
        super().__init__(*args, **options)

    def fit(self) -> Result:
        request = self._request
        trial = isinstance(request.scaling, ScalingConfig) or isinstance(request.run, RunConfig)
        return fit_as_trial(self) if trial else super().fit()
