"""The public language: a name that appears or disappears, or a signature that changes, is a decision."""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import headway.compat
import headway.data
import headway.testing
import headway.train
import headway.train.torch

TRAIN = """
BackendConfig Checkpoint CheckpointConfig CheckpointConsistencyMode CheckpointUploadMode ConfigError ControllerError
DataConfig DataError DataParallelTrainer EarlyStopping EngineError FailureConfig HeadwayError LoggingConfig MetricsError
PreemptionError PreemptionInfo RemoteError ReportedCheckpoint ReportedCheckpointStatus Result Run RunConfig
ScalingConfig SessionError StorageError TrainContext TrainRunContext TrainingFailedError UserCallback
ValidationConfig ValidationTaskConfig WorkerDied WorkerGroupError WorkerStalled collective
get_all_reported_checkpoints get_checkpoint get_context get_dataset_shard get_preemption_info phase report track
""".split()

DATA = """
ArrowBatchCollateFn DataContext DataError DataIterator Dataset ExecutionOptions GroupedData NumpyBatchCollateFn
PandasBatchCollateFn from_arrow from_huggingface from_items from_numpy from_pandas from_torch range range_tensor
read_binary_files read_csv read_images read_json read_numpy read_parquet read_text read_webdataset
""".split()

DATASET = """
add_column columns count drop_columns filter flat_map get_context groupby iter_batches iter_rows iter_tf_batches
iter_torch_batches limit map map_batches materialize max mean min num_blocks pipeline probe random_shuffle
randomize_block_order rename_columns repartition repeat schema select_columns show size_bytes sort split
split_at_indices split_proportionately stats std streaming_split sum take take_all take_batch to_arrow to_pandas
to_tf to_torch train_test_split union unique window write_csv write_json write_parquet zip
""".split()

TORCH = """
TorchCheckpoint TorchConfig TorchTrainer accelerate backward enable_reproducibility get_device get_devices
prepare_data_loader prepare_model prepare_optimizer
""".split()

SIGNATURES = {
    "train.report": (
        "(metrics, checkpoint=None, checkpoint_dir_name=None, "
        "checkpoint_upload_mode=<CheckpointUploadMode.SYNC: 'SYNC'>, "
        "delete_local_checkpoint_after_upload=None, checkpoint_upload_fn=None, validation=False)"
    ),
    "train.get_all_reported_checkpoints": (
        "(consistency_mode=<CheckpointConsistencyMode.VALIDATED: 'VALIDATED'>, timeout_s=None)"
    ),
    "train.ValidationConfig": "(fn, task_config=None, ray_remote_kwargs=None, max_concurrent=2)",
    "train.ValidationTaskConfig": "(fn_kwargs=None, timeout_s=None)",
    "train.ReportedCheckpoint": "(checkpoint, metrics, status)",
    "train.get_checkpoint": "()",
    "train.get_context": "()",
    "train.collective.barrier": "()",
    "train.collective.broadcast_from_rank_zero": "(data)",
    "train.ScalingConfig": (
        "(num_workers=1, use_gpu=False, resources_per_worker=None, placement_strategy='PACK', engine='auto', "
        "elastic_resize_monitor_interval_s=60.0, keep_global_batch=False)"
    ),
    "train.FailureConfig": (
        "(max_failures=0, controller_failure_limit=-1, max_preemption_failures=-1, stall_warn_s=5.0, "
        "stall_timeout_s=None, retry_exceptions=True)"
    ),
    "train.CheckpointConfig": (
        "(num_to_keep=None, checkpoint_score_attribute=None, checkpoint_score_order='max', every_reports=None, "
        "every_s=None)"
    ),
    "train.track": "(**things)",
    "train.get_dataset_shard": "(name=None)",
    "train.DataConfig": "(datasets_to_split='all', execution_options=None, enable_shard_locality=True)",
    "data.DataIterator.iter_batches": (
        "(self, *, prefetch_batches=1, batch_size=256, batch_format='default', drop_last=False, "
        "local_shuffle_buffer_size=None, local_shuffle_seed=None, pad_last=False)"
    ),
    "data.DataIterator.iter_torch_batches": (
        "(self, *, prefetch_batches=1, batch_size=256, dtypes=None, device='auto', collate_fn=None, drop_last=False, "
        "local_shuffle_buffer_size=None, local_shuffle_seed=None, pin_memory=False, pad_last=False)"
    ),
    "train.EarlyStopping": "(metric, mode='min', patience=3, min_delta=0.0)",
    "train.EarlyStopping.update": "(self, metrics=None)",
    "train.LoggingConfig": "(log_level='INFO')",
    "train.DataParallelTrainer": (
        "(train_loop_per_worker, *, train_loop_config=None, backend_config=None, scaling_config=None, "
        "run_config=None, resume_from_checkpoint=None, metadata=None, validation_config=None, datasets=None, "
        "dataset_config=None)"
    ),
    "train.Checkpoint": "(path, filesystem=None)",
    "train.Checkpoint.from_directory": "(path)",
    "train.Checkpoint.to_directory": "(self, path=None)",
    "train.Checkpoint.from_dict": "(data)",
    "train.Checkpoint.to_dict": "(self, trust=False)",
    "train.Checkpoint.as_directory": "(self)",
    "train.Result.from_path": "(path, storage_filesystem=None)",
    "train.Result.get_best_checkpoint": "(self, metric, mode)",
    "train.UserCallback.after_report": "(self, run_context, metrics, checkpoint)",
    "train.UserCallback.after_exception": "(self, run_context, worker_exceptions)",
    "train.Run.reports": "(self, rank=0)",
    "train.torch.TorchTrainer": (
        "(train_loop_per_worker, *, train_loop_config=None, torch_config=None, scaling_config=None, "
        "run_config=None, resume_from_checkpoint=None, metadata=None, validation_config=None, datasets=None, "
        "dataset_config=None)"
    ),
    "train.torch.TorchConfig": "(backend=None, init_method='env', timeout_s=1800)",
    "train.torch.prepare_model": (
        "(model, move_to_device=True, parallel_strategy='ddp', parallel_strategy_kwargs=None)"
    ),
    "train.torch.prepare_data_loader": "(data_loader, add_dist_sampler=True, move_to_device=True, auto_transfer=True)",
    "train.torch.accelerate": "(amp=False)",
    "train.torch.prepare_optimizer": "(optimizer)",
    "train.torch.backward": "(loss)",
    "train.torch.enable_reproducibility": "(seed=0)",
    "train.torch.get_device": "()",
    "train.torch.get_devices": "()",
}

RESULT = """
best_checkpoints checkpoint config error filesystem metrics metrics_dataframe path return_value state
""".split()
CONTEXT = """
get_experiment_name get_local_rank get_local_world_size get_metadata get_node_rank get_storage get_trial_dir
get_trial_id get_trial_name get_trial_resources get_world_rank get_world_size
""".split()


def test_the_names_of_train() -> None:
    assert sorted(headway.train.__all__) == sorted(TRAIN)
    assert all(hasattr(headway.train, name) for name in TRAIN)


def test_the_names_of_train_torch() -> None:
    assert sorted(headway.train.torch.__all__) == sorted(TORCH)
    assert all(hasattr(headway.train.torch, name) for name in TORCH)


def test_the_names_of_data() -> None:
    assert sorted(headway.data.__all__) == sorted(DATA)
    assert all(hasattr(headway.data, name) for name in DATA)
    assert sorted(name for name in dir(headway.data.Dataset) if not name.startswith("_")) == sorted(DATASET)


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature(name: str) -> None:
    thing: Any = headway
    for part in name.split("."):
        thing = getattr(thing, part)
    signature = inspect.signature(thing)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    assert str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)) == SIGNATURES[name]


def test_run_config_takes_what_it_says() -> None:
    assert list(inspect.signature(headway.train.RunConfig).parameters) == [
        "name",
        "storage_path",
        "storage_filesystem",
        "failure_config",
        "checkpoint_config",
        "logging_config",
        "callbacks",
        "worker_runtime_env",
        "resume",
        "trust",
    ]


def test_a_result_and_a_context_have_these_attributes() -> None:
    result = headway.train.DataParallelTrainer(
        headway.train.get_context, scaling_config=headway.train.ScalingConfig(0)
    ).fit()
    assert [name for name in RESULT if not hasattr(result, name)] == []
    assert sorted(name for name in dir(result.return_value) if name.startswith("get_")) == sorted(CONTEXT)


def public_modules() -> Iterator[ModuleType]:
    yield from (headway.train, headway.train.torch, headway.train.collective, headway.data)
    for package in (headway.compat, headway.testing):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                yield importlib.import_module(found.name)


def public_things() -> dict[str, Any]:
    """Every public function and class with more than two parameters, by its module and name."""
    found = {}
    for module in public_modules():
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if callable(thing) and not (isinstance(thing, type) and issubclass(thing, enum.Enum)):
                found[f"{thing.__module__}.{thing.__qualname__}"] = thing
    return {name: thing for name, thing in found.items() if len(parameters(thing)) > 2}


def parameters(thing: Any) -> set[str]:
    try:
        return set(inspect.signature(thing).parameters)
    except ValueError:  # an exception without a constructor of its own
        return set()


def documented_parameters(thing: Any) -> set[str]:
    """The names in the ``Args:`` section of a function, of a class, or of its constructor."""
    texts = [inspect.getdoc(thing) or "", (inspect.getdoc(thing.__init__) or "") if isinstance(thing, type) else ""]
    sections = [text.partition("Args:\n")[2] for text in texts]
    return {name for section in sections for name in re.findall(r"^    \*{0,2}(\w+): ", section, re.MULTILINE)}


@pytest.mark.parametrize("name", sorted(public_things()))
def test_every_parameter_of_a_public_name_is_documented(name: str) -> None:
    thing = public_things()[name]
    missing = parameters(thing) - documented_parameters(thing)
    assert not missing


def test_every_public_name_explains_itself() -> None:
    for module in (headway.train, headway.train.torch):
        for name in module.__all__:
            assert inspect.getdoc(getattr(module, name)), f"{name} has no docstring"
