"""The vocabulary of Ray AIR: what is reported through its session gets the keys of that generation.

>>> from headway import train
>>> from headway.compat import air
>>> def train_func():
...     for epoch in range(2):
...         air.session.report({"epoch": epoch}, checkpoint=air.Checkpoint.from_dict({"epoch": epoch}))
>>> result = train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(0)).fit()
>>> result.metrics["training_iteration"], result.checkpoint.to_dict()["_current_checkpoint_id"]
(2, 1)
"""

from __future__ import annotations

import copy
import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headway.core.config import RunConfig
from headway.core.errors import StorageError
from headway.storage.checkpoint import Checkpoint
from headway.train.functions import get_checkpoint, get_context, get_dataset_shard, report
from headway.train.result import Result
from headway.train.trainer import DataParallelTrainer as _DataParallelTrainer
from headway.worker.session import current

if TYPE_CHECKING:
    from headway.data.iterator import DataIterator

__all__ = ["Checkpoint", "DataParallelTrainer", "session"]

_ID = "_current_checkpoint_id"


@dataclass
class _Trial:
    """What the trial layer of that generation counted, in one worker and attempt."""

    next_id: int
    began: float = field(default_factory=time.time)
    last: float = field(default_factory=time.time)
    iteration: int = 0
    before: int = 0  # iterations of former attempts


class Session:
    """``from ray.air import session``."""

    def report(self, metrics: Mapping[str, Any], *, checkpoint: Checkpoint | None = None) -> None:
        """As ``train.report``, with the keys that were filled in by themselves."""
        trial = _trial()
        trial.iteration += 1
        report({**_filled_in(trial), **metrics}, _with_extra_keys(trial, checkpoint))

    def get_checkpoint(self) -> Checkpoint | None:
        return get_checkpoint()

    def get_dataset_shard(self, dataset_name: str | None = None) -> DataIterator:
        return get_dataset_shard(dataset_name)

    def get_world_rank(self) -> int:
        return get_context().get_world_rank()

    def get_world_size(self) -> int:
        return get_context().get_world_size()

    def get_local_rank(self) -> int:
        return get_context().get_local_rank()

    def get_trial_name(self) -> str:
        return get_context().get_trial_name()

    def get_trial_id(self) -> str:
        return _trial_id()

    def get_trial_resources(self) -> dict[str, float]:
        return get_context().get_trial_resources()


session = Session()


class DataParallelTrainer(_DataParallelTrainer):
    """Its runs are trials: named and nested as they were, and done when they are over.

    ``TorchTrainer_2022-07-14_20-05-20/TorchTrainer_4913f_00000_0_2022-07-14_20-05-20/checkpoints/checkpoint_000003``
    """

    def fit(self) -> Result:
        trial = copy.copy(self)
        trial._request = replace(self._request, run=_as_trial(self._request.run, self._request.kind))
        result = _DataParallelTrainer.fit(trial)
        if result.metrics is not None and "done" in result.metrics:
            result.metrics["done"] = True
        return result


def _as_trial(config: RunConfig, kind: str) -> RunConfig:
    date = time.strftime("%Y-%m-%d_%H-%M-%S")
    storage = str(config.storage) if config.is_local else os.fspath(config.storage_path or "").rstrip("/")
    trial = f"{kind}_{secrets.token_hex(3)[:5]}_00000_0_{date}"
    return replace(config, storage_path=f"{storage}/{config.name or f'{kind}_{date}'}", name=trial)


def _trial() -> _Trial:
    extras = current("air.session.report").extras
    if "air" not in extras:
        extras["air"] = _Trial(_loaded_id())
        extras["air"].before = current("air.session.report").next_seq
    trial: _Trial = extras["air"]
    return trial


def _loaded_id() -> int:
    """Counting goes on from the id that was loaded, without adding one: that is how it was."""
    checkpoint = get_checkpoint()
    if checkpoint is None:
        return 0
    try:
        return int(checkpoint.to_dict().get(_ID, 0))
    except StorageError:  # a folder: it has no such key
        return 0


def _with_extra_keys(trial: _Trial, checkpoint: Checkpoint | None) -> Checkpoint | None:
    if checkpoint is None or checkpoint.get_internal_representation()[0] != "data_dict":
        return checkpoint
    number, trial.next_id = trial.next_id, trial.next_id + 1
    extra = {"_timestamp": time.time(), "_preprocessor": None, _ID: number}
    return Checkpoint.from_dict({**checkpoint.to_dict(), **extra})


def _filled_in(trial: _Trial) -> dict[str, Any]:
    now = time.time()
    this, trial.last = now - trial.last, now
    since = now - trial.began
    run = current("air.session.report").run
    return {
        "_timestamp": int(now),
        "_time_this_iter_s": this,
        "_training_iteration": trial.before + trial.iteration,
        "config": {},
        "date": time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(now)),
        "done": False,
        "episodes_total": None,
        "experiment_id": run.id,
        "experiment_tag": "0",
        "hostname": socket.gethostname(),
        "iterations_since_restore": trial.iteration,
        "node_ip": "127.0.0.1",
        "pid": os.getpid(),
        "time_since_restore": since,
        "time_this_iter_s": this,
        "time_total_s": since,
        "timestamp": int(now),
        "timesteps_since_restore": 0,
        "timesteps_total": None,
        "training_iteration": trial.before + trial.iteration,
        "trial_id": _trial_id(),
        "warmup_time": 0.0,
    }


def _trial_id() -> str:
    return f"{current('air.session.get_trial_id').run.id[:5]}_00000"
