"""The trainer of Ray AIR, whose runs are trials, named and nested as in AIR, with ``done`` in their last result.

``TorchTrainer_2022-07-14_20-05-20/TorchTrainer_4913f_00000_0_2022-07-14_20-05-20/checkpoints/checkpoint_000003``
"""

from __future__ import annotations

import copy
import os
from dataclasses import replace

from headway.compat.air.trials import nested_name
from headway.core.config import RunConfig
from headway.train import trainer as base
from headway.train.result import Result


def fit_as_trial(trainer: base.DataParallelTrainer) -> Result:
    """Run ``fit()`` with the directories of a trial, and mark its last result as ``done``."""
    trial = copy.copy(trainer)
    trial._request = replace(trainer._request, run=_nested(trainer._request.run, trainer._request.kind))
    result = base.DataParallelTrainer.fit(trial)
    if result.metrics is not None and "done" in result.metrics:
        result.metrics["done"] = True
    return result


def _nested(config: RunConfig, kind: str) -> RunConfig:
    experiment, trial = nested_name(kind)
    storage = str(config.storage) if config.is_local else os.fspath(config.storage_path or "").rstrip("/")
    return replace(config, storage_path=f"{storage}/{config.name or experiment}", name=trial)


class AirTrainer(base.DataParallelTrainer):
    """See :class:`headway.train.DataParallelTrainer`."""

    kind = "DataParallelTrainer"

    def fit(self) -> Result:
        return fit_as_trial(self)


# Scripts import the class under this name.
DataParallelTrainer = AirTrainer
