"""The API of Ray AIR: reports made through its session include the metrics that AIR added.

>>> from headway.compat import air
>>> def train_func():
...     for epoch in range(2):
...         air.session.report({"epoch": epoch}, checkpoint=air.Checkpoint.from_dict({"epoch": epoch}))
>>> result = air.DataParallelTrainer(train_func, scaling_config=air.ScalingConfig(0)).fit()
>>> result.metrics["training_iteration"], result.checkpoint.to_dict()["_current_checkpoint_id"]
(2, 1)
"""

from headway.compat.air import session
from headway.compat.air.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from headway.compat.air.trainers import DataParallelTrainer
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.train.result import Result

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "DataParallelTrainer",
    "FailureConfig",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "session",
]
