"""The map from Ray's names to Headway's names."""

from __future__ import annotations

import headway.data
import headway.train
from headway.compat import air, sgd

# Everything below these modules is Headway's or refused; everything else below ``ray`` is Ray's.
REPLACED = ("ray.train", "ray.air", "ray.tune", "ray.data", "ray.sgd", "ray.util.sgd")

LATER = {
    "ray.tune": "tuning is not supported",
    "ray.train.tensorflow": "use headway.train.torch",
    "ray.train.horovod": "use headway.train.torch",
    "ray.train.lightning": "use lightning.Trainer() without Ray's strategy, environment and prepare_trainer()",
    "ray.train.huggingface": "use transformers.Trainer() without Ray's callback and prepare_trainer()",
    "ray.train.xgboost": "only PyTorch is supported",
    "ray.train.lightgbm": "only PyTorch is supported",
    "ray.data.preprocessors": "use map_batches() with a preprocessor of scikit-learn",
    "ray.data.read_sql": "read the rows with pandas.read_sql() and pass them to ray.data.from_pandas()",
    "ray.data.read_mongo": "write the collection to files and read these, or pass a list to ray.data.from_items()",
    "ray.train.SyncConfig": "files go straight to storage_path; there is nothing to sync",
}


def _all_of(module: str, names: list[str]) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names}


def _submodules(parent: str, *names: str) -> dict[str, str]:
    return {name: f"{parent}.{name}" for name in names}


_AS_TRAIN = "headway.compat.as_ray.train"
_AS_TORCH = "headway.compat.as_ray.torch"
_SGD = "headway.compat.sgd"
_CALLBACKS = "headway.compat.air.callbacks"

_CONFIGS = ["CheckpointConfig", "FailureConfig", "RunConfig", "ScalingConfig"]

_TRAIN = {
    **_all_of(_SGD, ["get_dataset", "load_checkpoint", "local_rank", "save_checkpoint", "world_rank", "world_size"]),
    **_all_of(_SGD, ["CheckpointStrategy"]),
    "TrainingCallback": f"{_SGD}:SGDCallback",
    "TrainingIterator": f"{_SGD}:SGDIterator",
    "BaseTrainer": "headway.train:DataParallelTrainer",
    **_all_of("headway.train", headway.train.__all__),
    **_all_of("headway.compat.retired_options", _CONFIGS),
    **_all_of(_AS_TRAIN, ["TRAIN_DATASET_KEY", "Trainer", "report"]),
}
_TRAIN_CALLBACKS = {
    **_all_of(_SGD, ["JsonLoggerCallback", "PrintCallback", "TBXLoggerCallback", "TorchTensorboardProfilerCallback"]),
    "CSVLoggerCallback": f"{_SGD}:CSVCallback",
    "MLflowLoggerCallback": f"{_SGD}:MlflowCallback",
    "TrainingCallback": f"{_SGD}:SGDCallback",
}
_TORCH = {
    **{
        name: f"headway.train.torch:{name}"
        for name in (
            "TorchCheckpoint",
            "TorchConfig",
            "accelerate",
            "backward",
            "enable_reproducibility",
            "get_device",
            "get_devices",
            "prepare_data_loader",
            "prepare_model",
            "prepare_optimizer",
        )
    },
    "TorchTrainer": f"{_AS_TORCH}:TorchTrainer",
    "TorchWorkerProfiler": "headway.compat.torch_profiler:TorchWorkerProfiler",
}
_AIR = _all_of("headway.compat.air", [name for name in air.__all__ if name not in ("session", "DataParallelTrainer")])
_LOGGERS = ["CSVLoggerCallback", "JsonLoggerCallback", "LoggerCallback", "TBXLoggerCallback"]
_SESSION = [name for name in vars(air.session) if name == "report" or name.startswith("get_")]
_V2 = _all_of(_SGD, sgd.__all__)

FACES: dict[str, dict[str, str]] = {
    # Ray Train, from 1.x to V2
    "ray.train": {**_TRAIN, **_submodules("ray.train", "torch", "callbacks", "error")},
    "ray.train.torch": _TORCH,
    "ray.train.callbacks": _TRAIN_CALLBACKS,
    "ray.train.callback": {"TrainingCallback": f"{_SGD}:SGDCallback"},
    "ray.train.checkpoint": _all_of(_SGD, ["CheckpointStrategy"]),
    "ray.train.backend": _all_of("headway.train", ["BackendConfig"]),
    "ray.train.base_trainer": {
        "BaseTrainer": "headway.train:DataParallelTrainer",
        "TrainingFailedError": "headway.train:TrainingFailedError",
    },
    "ray.train.trainer": {"BaseTrainer": "headway.train:DataParallelTrainer", "Trainer": f"{_AS_TRAIN}:Trainer"},
    "ray.train.data_parallel_trainer": _all_of("headway.train", ["DataParallelTrainer"]),
    "ray.train.collective": _all_of("headway.train.collective", ["barrier", "broadcast_from_rank_zero"]),
    "ray.train.constants": _all_of(_AS_TRAIN, ["TRAIN_DATASET_KEY"]),
    "ray.train.context": _all_of("headway.train", ["TrainContext", "get_context"]),
    "ray.train.torch.config": _all_of("headway.train.torch", ["TorchConfig"]),
    "ray.train.torch.torch_trainer": _all_of(_AS_TORCH, ["TorchTrainer"]),
    "ray.train.error": _all_of("headway.train", ["TrainingFailedError"]),
    # Ray AIR
    "ray.air": {**_AIR, **_submodules("ray.air", "session", "config", "checkpoint", "result", "integrations")},
    "ray.air.session": _all_of("headway.compat.air.session", _SESSION),
    "ray.air.config": _all_of(
        "headway.compat.air.config",
        [
            "CheckpointConfig",
            "FailureConfig",
            "RunConfig",
            "ScalingConfig",
        ],
    ),
    "ray.air.checkpoint": _all_of("headway.compat.air", ["Checkpoint"]),
    "ray.air.result": _all_of("headway.compat.air", ["Result"]),
    "ray.air.constants": _all_of(_AS_TRAIN, ["TRAIN_DATASET_KEY"]),
    "ray.air.callbacks": {},
    "ray.air.callbacks.mlflow": _all_of(_CALLBACKS, ["MLflowLoggerCallback"]),
    "ray.air.callbacks.wandb": _all_of(_CALLBACKS, ["WandbLoggerCallback"]),
    "ray.air.integrations": _submodules("ray.air.integrations", "mlflow", "wandb"),
    "ray.air.integrations.mlflow": _all_of(_CALLBACKS, ["MLflowLoggerCallback"]),
    "ray.air.integrations.wandb": _all_of(_CALLBACKS, ["WandbLoggerCallback"]),
    # Ray Tune: only its callbacks so far
    "ray.tune": {**_all_of(_CALLBACKS, ["Callback"]), **_submodules("ray.tune", "callback", "logger")},
    "ray.tune.callback": _all_of(_CALLBACKS, ["Callback"]),
    "ray.tune.logger": _all_of(_CALLBACKS, _LOGGERS),
    # Ray Data
    "ray.data": {**_all_of("headway.data", headway.data.__all__), **_submodules("ray.data", "dataset", "context")},
    "ray.data.dataset": _all_of("headway.data", ["Dataset"]),
    "ray.data.context": _all_of("headway.data", ["DataContext"]),
    "ray.data.iterator": _all_of("headway.data", ["DataIterator"]),
    # RaySGD v2
    "ray.sgd": _V2,
    "ray.util": _submodules("ray.util", "sgd"),
    "ray.util.sgd": _submodules("ray.util.sgd", "v2"),
    "ray.util.sgd.v2": {**_V2, **_submodules("ray.util.sgd.v2", "callbacks")},
    "ray.util.sgd.v2.callbacks": _all_of(_SGD, [name for name in sgd.__all__ if name.endswith("Callback")]),
}
