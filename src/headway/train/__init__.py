"""The public names for training code: trainers, configs, and the functions to call inside a training function.

    from headway import train

    def train_func(config):
        for epoch in range(config["epochs"]):
            ...
            train.report({"loss": loss}, checkpoint=train.Checkpoint.from_directory(folder))

The part for PyTorch is :mod:`headway.train.torch`; importing this module imports no framework.
"""

from headway.core.callback import TrainRunContext, UserCallback
from headway.core.config import (
    CheckpointConfig,
    CheckpointUploadMode,
    FailureConfig,
    LoggingConfig,
    RunConfig,
    ScalingConfig,
)
from headway.core.errors import (
    ConfigError,
    ControllerError,
    DataError,
    EngineError,
    HeadwayError,
    MetricsError,
    PreemptionError,
    PreemptionInfo,
    RemoteError,
    SessionError,
    StorageError,
    TrainingFailedError,
    WorkerDied,
    WorkerGroupError,
    WorkerStalled,
)
from headway.core.validation import (
    CheckpointConsistencyMode,
    ReportedCheckpointStatus,
    ValidationConfig,
    ValidationTaskConfig,
)
from headway.frameworks.base import BackendConfig
from headway.observe.log_handler import install as _install_log_handler
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.train import collective
from headway.train.context import TrainContext
from headway.train.datasets import DataConfig
from headway.train.early_stopping import EarlyStopping
from headway.train.functions import (
    get_all_reported_checkpoints,
    get_checkpoint,
    get_context,
    get_dataset_shard,
    get_preemption_info,
    phase,
    report,
    track,
)
from headway.train.reported import ReportedCheckpoint
from headway.train.result import Result
from headway.train.run_handle import Run
from headway.train.trainer import DataParallelTrainer

__all__ = [
    "BackendConfig",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointConsistencyMode",
    "CheckpointUploadMode",
    "ConfigError",
    "ControllerError",
    "DataConfig",
    "DataError",
    "DataParallelTrainer",
    "EarlyStopping",
    "EngineError",
    "FailureConfig",
    "HeadwayError",
    "LoggingConfig",
    "MetricsError",
    "PreemptionError",
    "PreemptionInfo",
    "RemoteError",
    "ReportedCheckpoint",
    "ReportedCheckpointStatus",
    "Result",
    "Run",
    "RunConfig",
    "ScalingConfig",
    "SessionError",
    "StorageError",
    "TrainContext",
    "TrainRunContext",
    "TrainingFailedError",
    "UserCallback",
    "ValidationConfig",
    "ValidationTaskConfig",
    "WorkerDied",
    "WorkerGroupError",
    "WorkerStalled",
    "collective",
    "get_all_reported_checkpoints",
    "get_checkpoint",
    "get_context",
    "get_dataset_shard",
    "get_preemption_info",
    "phase",
    "report",
    "track",
]

_install_log_handler()
