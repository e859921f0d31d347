"""Collective operations through the controller, which work with any framework and without a device.

If an operation can never complete, because a rank has returned or waits in a different operation, the run fails with
an error that names the missing ranks. No rank waits forever.
"""

from __future__ import annotations

import pickle
from typing import TypeVar

from headway.worker.session import current

T = TypeVar("T")

BROADCAST = "broadcast_from_rank_zero()"


def barrier() -> None:
    """Wait until all ranks have called this function."""
    current("headway.train.collective.barrier").barrier("barrier()")


def broadcast_from_rank_zero(data: T) -> T:
    """Return rank 0's ``data`` on every rank. For small objects: names, numbers, seeds.

    >>> import headway.train as train
    >>> def train_func():
    ...     return train.collective.broadcast_from_rank_zero("run-7")
    >>> train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(0)).fit().return_value
    'run-7'
    """
    session = current("headway.train.collective.broadcast_from_rank_zero")
    mine = pickle.dumps(data) if session.rank == 0 else b""
    theirs: T = pickle.loads(session.barrier(BROADCAST, mine))
    return theirs
