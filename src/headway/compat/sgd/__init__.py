"""The API of RaySGD v2 and Ray Train 1.x: a trainer that is started, runs functions, and is shut down.

>>> from headway.compat import sgd
>>> def train_func(config):
...     for epoch in range(config["num_epochs"]):
...         sgd.report(epoch=epoch)
...         sgd.save_checkpoint(epoch=epoch)
...     return sgd.world_rank()
>>> trainer = sgd.Trainer(backend="torch", num_workers=2)
>>> trainer.start()
>>> trainer.run(train_func, config={"num_epochs": 3})
[0, 1]
>>> trainer.shutdown()
>>> trainer.latest_checkpoint
{'epoch': 2}
"""

from headway.compat.sgd.callbacks import (
    CSVCallback,
    JsonLoggerCallback,
    MlflowCallback,
    PrintCallback,
    SGDCallback,
    TBXLoggerCallback,
    TorchTensorboardProfilerCallback,
    WandbCallback,
)
from headway.compat.sgd.checkpoint_strategy import CheckpointStrategy
from headway.compat.sgd.iterator import SGDIterator
from headway.compat.sgd.session import (
    get_data_shard,
    get_dataset,
    get_dataset_shard,
    load_checkpoint,
    local_rank,
    report,
    save_checkpoint,
    world_rank,
    world_size,
)
from headway.compat.sgd.trainer import Trainer
from headway.frameworks.base import BackendConfig
from headway.frameworks.torch_config import TorchConfig

__all__ = [
    "BackendConfig",
    "CSVCallback",
    "CheckpointStrategy",
    "JsonLoggerCallback",
    "MlflowCallback",
    "PrintCallback",
    "SGDCallback",
    "SGDIterator",
    "TBXLoggerCallback",
    "TorchConfig",
    "TorchTensorboardProfilerCallback",
    "Trainer",
    "WandbCallback",
    "get_data_shard",
    "get_dataset",
    "get_dataset_shard",
    "load_checkpoint",
    "local_rank",
    "report",
    "save_checkpoint",
    "world_rank",
    "world_size",
]
