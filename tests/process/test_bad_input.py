"""Invalid input is refused with one sentence that names field, value and remedy, before any process starts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from headway import train
from headway.core.config import chosen_engine
from headway.core.schema.run_description import Opening
from headway.engine import local
from headway.train import CheckpointConfig, FailureConfig, LoggingConfig, RunConfig, ScalingConfig
from headway.train.torch import TorchConfig, TorchTrainer
from support import fit, plain_trainer


@pytest.fixture(autouse=True)
def no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(self: Any, attempt: int, num_workers: int) -> None:
        raise AssertionError("a worker was launched")

    monkeypatch.setattr(local.LocalEngine, "launch", launch)


def expect_refusal(match: str, kind: type[Exception] = train.ConfigError) -> Any:
    return pytest.raises(kind, match=match)


@pytest.mark.parametrize("count", [-1, 1.5, "2", None, True, (0, 2), (3, 2), (1,), (1, 2, 3), [1, 2], (1, 2.0)])
def test_a_bad_worker_count(count: Any) -> None:
    with expect_refusal(r"num_workers must be 0 \(in this process\), a positive number or \(min, max\)") as caught:
        ScalingConfig(num_workers=count)
    assert repr(count) in str(caught.value)


def test_an_unknown_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with expect_refusal("engine must be one of auto, local, inline, got 'slurm'"):
        ScalingConfig(engine="slurm")
    monkeypatch.setenv("HEADWAY_ENGINE", "cloud")
    with expect_refusal("HEADWAY_ENGINE must be one of auto, local, inline, got 'cloud'"):
        chosen_engine(ScalingConfig())


def test_missing_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    trainer = train.DataParallelTrainer(lambda: None, scaling_config=ScalingConfig(4, use_gpu=True))
    with expect_refusal(r"the run needs 4 GPUs \(4 workers × 1\), this machine has 0: lower num_workers"):
        trainer.fit()


def test_more_cpus_than_exist_are_refused() -> None:
    scaling = ScalingConfig(2, resources_per_worker={"CPU": 5000})
    with expect_refusal(r"the run needs 10000 CPUs \(2 workers × 5000\), this machine has \d+"):
        train.DataParallelTrainer(lambda: None, scaling_config=scaling).fit()


def test_a_resource_that_no_machine_has() -> None:
    scaling = ScalingConfig(resources_per_worker={"quantum": 1})
    with expect_refusal("the run needs 1 'quantum', this machine has 0"):
        train.DataParallelTrainer(lambda: None, scaling_config=scaling).fit()


@pytest.mark.parametrize("resources", [{"CPU": -1}, {"CPU": "1"}, {"GPU": 1.5}, {"CPU": float("nan")}, ["CPU"]])
def test_resources_that_make_no_sense(resources: Any) -> None:
    with expect_refusal("resources_per_worker"):
        ScalingConfig(resources_per_worker=resources)


def test_resources_that_contradict_use_gpu() -> None:
    with expect_refusal(r'use_gpu=True contradicts resources_per_worker\["GPU"\]=0'):
        ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 0})


@pytest.mark.parametrize("seconds", [0, -1, "60", None, True, float("nan"), float("inf")])
def test_a_bad_interval_for_looking_at_capacity(seconds: Any) -> None:
    with expect_refusal("elastic_resize_monitor_interval_s must be a positive number of seconds, got") as caught:
        ScalingConfig((1, 2), elastic_resize_monitor_interval_s=seconds)
    assert repr(seconds) in str(caught.value)
    assert "set num_workers to one number" in str(caught.value)


def test_a_global_batch_is_kept_or_not() -> None:
    with expect_refusal("keep_global_batch must be True or False, got 1"):
        ScalingConfig((1, 2), keep_global_batch=1)  # type: ignore[arg-type]


def test_one_machine_cannot_be_several() -> None:
    scaling = ScalingConfig(2, placement_strategy="STRICT_SPREAD")
    with expect_refusal("needs 2 machines, but there is only one"):
        train.DataParallelTrainer(lambda: None, scaling_config=scaling).fit()
    with expect_refusal("placement_strategy must be one of PACK"):
        ScalingConfig(placement_strategy="HEAP")


def test_inline_is_one_worker() -> None:
    with expect_refusal("engine='inline' runs one worker, in this process; num_workers is 2"):
        train.DataParallelTrainer(lambda: None, scaling_config=ScalingConfig(2, engine="inline")).fit()


def test_a_function_with_two_parameters() -> None:
    def train_func(config: Any, other: Any) -> None: ...

    with expect_refusal(r"'train_func' must take no parameter or one \(the config\), but requires 2"):
        fit(train_func)


def test_a_training_function_must_be_callable() -> None:
    with expect_refusal("train_loop_per_worker must be a function, got 7"):
        fit(7)


def test_a_generator_function_is_refused() -> None:
    def train_func() -> Any:
        yield 1

    async def other() -> None: ...

    for function in (train_func, other):
        with expect_refusal("must be a plain function"):
            fit(function)


def test_a_config_must_be_a_dict() -> None:
    with expect_refusal(
        r"train_loop_config must be a dict, a dataclass instance or another object with fields, got \[1\]"
    ):
        train.DataParallelTrainer(lambda config: None, train_loop_config=[1]).fit()  # type: ignore[arg-type]


def test_an_unpicklable_function_names_the_variable() -> None:
    lock = threading.Lock()

    def helper() -> None:
        lock.acquire()

    def train_func() -> None:
        helper()

    with expect_refusal(
        r"'train_func' cannot be sent to the workers: its variable 'helper' → its variable 'lock' is a _thread"
    ):
        fit(train_func)
    with pytest.raises(TypeError, match="create it inside the function"):
        fit(train_func)


def test_an_unpicklable_config_names_the_key() -> None:
    with expect_refusal("train_loop_config → key 'model' → key 'gate' is a _thread.lock"):
        fit(lambda config: None, config={"model": {"gate": threading.Lock()}})


def test_an_unpicklable_attribute_is_named() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.gate = threading.Lock()

        def train(self) -> None: ...

    with expect_refusal("self → attribute 'gate' is a _thread.lock"):
        fit(Trainer().train)


def test_an_unwritable_storage_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in (None, "mine"):
        with expect_refusal(r"storage_path '.*file/below' is not writable \(Not a directory\): choose another path"):
            fit(lambda: None, storage_path=tmp_path / "file/below", name=name)


def test_a_directory_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter-1.tex").write_text("precious")
    with expect_refusal("exists and is not a Headway run: choose another name"):
        fit(lambda: None, storage_path=tmp_path, name="thesis")


def test_storage_paths_and_filesystems() -> None:
    import pyarrow.fs

    with expect_refusal("storage_path 's3://' has no bucket name"):
        RunConfig(storage_path="s3://")
    filesystem = pyarrow.fs.SubTreeFileSystem("/tmp", pyarrow.fs.LocalFileSystem())
    with expect_refusal("storage_path must be a path on storage_filesystem, without s3://"):
        RunConfig(storage_path="s3://bucket/x", storage_filesystem=filesystem)
    with expect_refusal("storage_filesystem needs a storage_path"):
        RunConfig(storage_filesystem=filesystem)
    with expect_refusal("storage_filesystem must be a filesystem of pyarrow or fsspec, got int"):
        plain_trainer(print, name="x", storage_path="x", storage_filesystem=5).fit()
    assert RunConfig(storage_path="file:///tmp/x", name="y").path == Path("/tmp/x/y")


@pytest.mark.parametrize("name", ["", " ", "..", ".", "a/b", "a\0b", 7])
def test_a_run_name_must_be_a_directory_name(name: Any) -> None:
    with expect_refusal("name must be a plain directory name without slashes"):
        RunConfig(name=name)


def test_a_run_name_that_no_filesystem_accepts_is_refused() -> None:
    assert RunConfig(name="ü" * 127).name == "ü" * 127
    with expect_refusal("name must have at most 255 bytes, got 256: 'üüü"):
        RunConfig(name="ü" * 128)
    with expect_refusal("name must be text that a filesystem can encode"):
        RunConfig(name="\ud800")


@pytest.mark.parametrize("n", [-2, 1.0, "3", None, True])
def test_a_bad_number_of_failures(n: Any) -> None:
    with expect_refusal(r"max_failures must be -1 \(unlimited\), 0 or a positive number"):
        FailureConfig(max_failures=n)


@pytest.mark.parametrize("n", [-1, 1.0, "3", True])
def test_a_bad_number_of_checkpoints(n: Any) -> None:
    with expect_refusal(r"num_to_keep must be None \(all\), 0 \(none on disk\) or a positive number"):
        CheckpointConfig(num_to_keep=n)


def test_errors_of_other_fields_name_valid_values() -> None:
    for match, make in {
        "checkpoint_score_order must be 'max' or 'min', got 'up'": lambda: CheckpointConfig(
            checkpoint_score_order="up"
        ),  # type: ignore[arg-type]
        "log_level must be one of DEBUG": lambda: LoggingConfig("LOUD"),
        "resume must be one of auto, never, must": lambda: RunConfig(resume="maybe"),  # type: ignore[arg-type]
        "failure_config must be a FailureConfig, got 3": lambda: RunConfig(failure_config=3),  # type: ignore[arg-type]
        "worker_runtime_env takes": lambda: RunConfig(worker_runtime_env={"pip": ["x"]}),
        "env_vars must be a dict of strings, got None": lambda: RunConfig(worker_runtime_env={"env_vars": None}),
        "callbacks must be a list of UserCallback": lambda: RunConfig(callbacks=train.UserCallback()),  # type: ignore[arg-type]
        "storage_path must be a path or a URI like s3://bucket/runs, got 5": lambda: RunConfig(storage_path=5),  # type: ignore[arg-type]
        "use_gpu must be True or False, got 'no'": lambda: ScalingConfig(use_gpu="no"),  # type: ignore[arg-type]
        "checkpoint_score_attribute must be the name of a metric, got 5": lambda: CheckpointConfig(
            checkpoint_score_attribute=5  # type: ignore[arg-type]
        ),
        'resume="must" needs the name of the run': lambda: RunConfig(resume="must"),
        "metadata must be a dict, got 5": lambda: TorchTrainer(print, metadata=5),  # type: ignore[arg-type]
        "resume_from_checkpoint: there is no directory /no/such": lambda: TorchTrainer(
            print, resume_from_checkpoint=train.Checkpoint("/no/such")
        ),
        "env_vars must be strings": lambda: RunConfig(worker_runtime_env={"env_vars": {"A": 1}}),
        "init_method must be 'env' or 'tcp'": lambda: TorchConfig(init_method="carrier pigeon"),  # type: ignore[arg-type]
        "timeout_s must be a positive number": lambda: TorchConfig(timeout_s=0),
        "scaling_config must be a ScalingConfig": lambda: TorchTrainer(print, scaling_config=2),  # type: ignore[arg-type]
        "torch_config must be a TorchConfig": lambda: TorchTrainer(print, torch_config="gloo"),  # type: ignore[arg-type]
    }.items():
        with expect_refusal(match):
            make()


def test_a_required_parameter_that_is_not_given_is_refused() -> None:
    def train_func(*, rate: float) -> None: ...

    with expect_refusal("'train_func' requires the keyword argument 'rate'"):
        fit(train_func)


def test_metadata_must_pickle() -> None:
    trainer = train.DataParallelTrainer(print, metadata={"lock": threading.Lock()})
    with expect_refusal("metadata → key 'lock' is a _thread.lock, which cannot be pickled"):
        trainer.fit()


def test_an_invalid_torchrun_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("RANK", "first")
    with expect_refusal("the environment variable RANK must be a number, got 'first'"):
        train.DataParallelTrainer(print, scaling_config=ScalingConfig(0)).fit()


def test_gpu_fractions_that_do_not_add_up_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with expect_refusal("the run needs 1.8 GPUs"):
        train.DataParallelTrainer(
            print, scaling_config=ScalingConfig(num_workers=3, resources_per_worker={"GPU": 0.6})
        ).fit()


def test_callbacks_must_be_callbacks() -> None:
    with expect_refusal("callbacks must be instances of UserCallback, got <built-in function print>"):
        fit(lambda: None, callbacks=[print])


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ScalingConfig(num_worker=2), "ScalingConfig takes no 'num_worker': did you mean 'num_workers'?"),
        (lambda: RunConfig(storge_path="x"), "RunConfig takes no 'storge_path': did you mean 'storage_path'?"),
        (lambda: RunConfig(verbose=1), "RunConfig takes no 'verbose': use logging_config"),
        (lambda: FailureConfig(fail_fast=True), "use max_failures=0"),
        (lambda: TorchConfig(xyz=1), "TorchConfig takes no 'xyz': it has backend, init_method, timeout_s"),
        (lambda: TorchTrainer(print, config={}), "TorchTrainer takes no 'config': use train_loop_config"),  # type: ignore[call-arg]
        (lambda: TorchTrainer(print, scaling=1), "TorchTrainer takes no 'scaling': did you mean 'scaling_config'?"),
    ],
)
def test_an_unknown_keyword(make: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match.replace("?", r"\?")) as caught:
        make()
    assert isinstance(caught.value, train.ConfigError)


@pytest.mark.parametrize(
    "call",
    [
        lambda: train.report({}),
        train.get_checkpoint,
        train.get_context,
        train.collective.barrier,
        lambda: train.collective.broadcast_from_rank_zero(1),
    ],
)
def test_training_functions_outside_a_run(call: Any) -> None:
    with pytest.raises(RuntimeError, match=r"headway.train.*\(\) was called outside a training function"):
        call()


def test_two_runs_of_one_name_at_once(tmp_path: Path) -> None:
    from headway.storage.run.opening import open_run

    held = open_run(tmp_path / "mine", "auto")
    held.describe(Opening())
    try:
        with expect_refusal(
            r"run .*mine is open in process \d+ on .*: wait for it, or choose another name", train.StorageError
        ):
            fit(lambda: None, storage_path=tmp_path, name="mine")
    finally:
        held.close()


def test_a_trainer_is_refused_when_it_is_built() -> None:
    with expect_refusal("train_loop_per_worker must be a function, got 3"):
        train.DataParallelTrainer(3)  # type: ignore[arg-type]
    with expect_refusal("datasets must be a dict of names and datasets, got the name 3"):
        train.DataParallelTrainer(print, datasets={3: 4})  # type: ignore[dict-item]
    with expect_refusal("resources_per_worker has no 'CPUS': did you mean 'CPU'?"):
        ScalingConfig(2, resources_per_worker={"CPUS": 1})
    with expect_refusal(r"without slashes or control characters, got 'run\\n'"):
        RunConfig(name="run\n")
    with expect_refusal("takes no 'torch_config': use headway.train.torch.TorchTrainer"):
        train.DataParallelTrainer(print, torch_config=3)  # type: ignore[call-arg]


def test_a_storage_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with expect_refusal(r"storage_path '.*/file' is a file: choose a directory"):
        fit(lambda: None, storage_path=tmp_path / "file", name="run")
    with expect_refusal("storage_path '/proc/foo' cannot be created on this filesystem: choose another path"):
        fit(lambda: None, storage_path="/proc/foo")


def test_a_log_level_is_quoted_as_it_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_LOG_LEVEL", "loud")
    with expect_refusal("HEADWAY_LOG_LEVEL must be one of DEBUG, INFO, WARNING, ERROR, got 'loud'"):
        RunConfig()
