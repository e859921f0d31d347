"""The functions that a training function written for RaySGD v2 or Ray Train 1.x calls.

One call is one round, in lockstep: no rank reports or saves until all have reached the same call. Ranks that make
different calls get an error instead of waiting for each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.compat.autofilled_metrics import Iterations, details, iterations
from headway.core.environment import wants_detailed_metrics
from headway.core.errors import SessionError
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.train import functions
from headway.worker.session import current

if TYPE_CHECKING:
    from headway.data.iterator import DataIterator

SAVED = "_checkpoint_saved"  # the key that marks a round that only saves


def report(**metrics: Any) -> None:
    """Report this rank's values for this round to the trainer, whose callbacks receive the values of all ranks."""
    count = iterations("sgd.report")
    current("sgd.report").barrier("report()")
    count.next()
    functions.report({**metrics, **_filled_in(count)})


def _filled_in(count: Iterations) -> dict[str, Any]:
    keys = {
        "_timestamp": int(count.last),
        "_time_this_iter_s": count.this_s,
        "_training_iteration": count.total,
    }
    if wants_detailed_metrics():
        values = details(count)
        names = ("date", "hostname", "node_ip", "pid", "time_total_s")
        keys.update({f"_{name}": values[name] for name in names})
    return keys


def save_checkpoint(**state: Any) -> None:
    """Save these values. All ranks call it; rank 0's are kept."""
    number = _next_number()
    current("sgd.save_checkpoint").barrier("save_checkpoint()")
    if world_rank() == 0:
        functions.report({SAVED: number}, Checkpoint.from_dict(state), checkpoint_dir_name=f"checkpoint_{number:06d}")
    else:
        functions.report({SAVED: number})


def _next_number() -> int:
    """Return the number of the next checkpoint, counted from 1 and continued from the newest one after a restart."""
    count = iterations("sgd.save_checkpoint")
    if count.saves is None:
        newest = functions.get_checkpoint()
        name = newest.path.rstrip("/").rpartition("checkpoint_")[2] if newest and newest.path else ""
        count.saves = int(name) if name.isdigit() else 0
    count.saves += 1
    return count.saves


def load_checkpoint() -> dict[str, Any] | None:
    """Return the newest checkpoint as the dict that was saved, or else the one passed to ``run(checkpoint=...)``."""
    checkpoint = functions.get_checkpoint()
    return None if checkpoint is None else checkpoint.to_dict()


def world_rank() -> int:
    return functions.get_context().get_world_rank()


def local_rank() -> int:
    return functions.get_context().get_local_rank()


def world_size() -> int:
    return functions.get_context().get_world_size()


def get_dataset_shard(dataset_name: str | None = None) -> DataIterator:
    """Return this worker's part of a dataset that was passed to ``run(dataset=...)``."""
    return functions.get_dataset_shard(dataset_name)


get_data_shard = get_dataset_shard


class _Sharded:
    """The result of ``get_dataset()``, for ``get_dataset().get_shard(rank)``."""

    def __init__(self, name: str | None) -> None:
        self._name = name

    def get_shard(self, rank: int) -> DataIterator:
        if rank != world_rank():
            raise SessionError(
                f"rank {world_rank()} can only read its own part of a dataset, not the part of rank {rank}"
            )
        return get_dataset_shard(self._name)


def get_dataset(dataset_name: str | None = None) -> _Sharded:
    return _Sharded(dataset_name)
