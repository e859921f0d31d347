"""The functions that a Ray AIR training function calls: ``from ray.air import session``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from headway.compat.air.trials import filled_in, is_trial, trial_id, trial_name
from headway.compat.autofilled_metrics import Iterations, iterations
from headway.core.errors import StorageError
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.train import functions
from headway.worker.session import current

if TYPE_CHECKING:
    from headway.data.iterator import DataIterator

_ID = "_current_checkpoint_id"


def report(metrics: Mapping[str, Any], *, checkpoint: Checkpoint | None = None) -> None:
    """Report like ``train.report``, with the keys that AIR adds."""
    run = current("air.session.report").run
    count = iterations("air.session.report")
    if count.next_id is None:
        count.next_id = _loaded_id()
    count.next()
    checkpoint = _with_extra_keys(count, checkpoint)
    if get_world_rank() > 0 and _is_dict(checkpoint):
        count.reported, checkpoint = checkpoint, None  # rank 0's is kept
    filled = filled_in(count, run.id, run.name)
    functions.report({**metrics, **{key: value for key, value in filled.items() if key not in metrics}}, checkpoint)


def get_checkpoint() -> Checkpoint | None:
    """Return the newest checkpoint, of this run or of the run that it resumes."""
    return iterations("air.session.get_checkpoint").reported or functions.get_checkpoint()


def get_dataset_shard(dataset_name: str | None = None) -> DataIterator:
    return functions.get_dataset_shard(dataset_name)


def get_world_rank() -> int:
    return functions.get_context().get_world_rank()


def get_world_size() -> int:
    return functions.get_context().get_world_size()


def get_local_rank() -> int:
    return functions.get_context().get_local_rank()


def get_local_world_size() -> int:
    return functions.get_context().get_local_world_size()


def get_node_rank() -> int:
    return functions.get_context().get_node_rank()


def get_experiment_name() -> str:
    """Return the run's name; if the run is a trial, the name of its parent directory."""
    run = current("air.session.get_experiment_name").run
    return PurePath(run.path).parent.name if is_trial(run.name) else run.name


def get_trial_name() -> str:
    run = current("air.session.get_trial_name").run
    return trial_name(run.id, run.name)


def get_trial_id() -> str:
    run = current("air.session.get_trial_id").run
    return trial_id(run.id, run.name)


def get_trial_dir() -> str:
    return functions.get_context().get_trial_dir()


def get_trial_resources() -> dict[str, float]:
    return functions.get_context().get_trial_resources()


def _loaded_id() -> int:
    """Return the ID where counting continues: the one that was loaded, without adding one, as in Ray AIR."""
    checkpoint = functions.get_checkpoint()
    if checkpoint is None:
        return 0
    try:
        return int(checkpoint.to_dict().get(_ID, 0))
    except StorageError:  # a directory checkpoint has no such key
        return 0


def _is_dict(checkpoint: Checkpoint | None) -> bool:
    return checkpoint is not None and checkpoint.get_internal_representation()[0] == "data_dict"


def _with_extra_keys(count: Iterations, checkpoint: Checkpoint | None) -> Checkpoint | None:
    if checkpoint is None or not _is_dict(checkpoint):
        return checkpoint
    assert count.next_id is not None
    number, count.next_id = count.next_id, count.next_id + 1
    extra = {"_timestamp": int(time.time()), "_preprocessor": None, _ID: number}
    return Checkpoint.from_dict({**checkpoint.to_dict(), **extra})
