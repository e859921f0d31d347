"""Ray programs unchanged: names, the real package for tasks and actors, and an error if it is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from headway.compat import retired_options

SOURCE = Path(__file__).parents[2] / "src"

USES_ACTORS = """
import json, os, tempfile
import ray
from ray import train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

context = ray.init(num_cpus=4, runtime_env={"env_vars": {"TOLD": "so"}})

@ray.remote
class Counter:
    def __init__(self):
        self.count = 0

    def add(self, number):
        self.count += number
        return self.count

counter = Counter.options(name="counter").remote()
assert ray.get(counter.add.remote(0)) == 0
assert context.address_info["gcs_address"]

class Plain:
    pass

words = ray.put({"of": "the driver"})

@ray.remote
def add_up(*numbers):
    return sum(numbers), os.environ["TOLD"]

def train_func(config):
    from ray.util.actor_pool import ActorPool
    import ray.cloudpickle

    counter = ray.get_actor("counter")
    assert ray.get(config["words"]) == ray.get(words) == {"of": "the driver"}
    assert ray.get(config["handle"].add.remote(0)) >= 0
    assert ray.get(add_up.remote(1, 2)) == (3, "so"), "a task of a training worker"
    assert os.environ["TOLD"] == "so"
    assert isinstance(ray.cloudpickle.loads(ray.cloudpickle.dumps(Plain())), Plain)
    assert ActorPool
    start = 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            start = json.load(open(os.path.join(folder, "state.json")))["epoch"] + 1
    shard = train.get_dataset_shard("train")
    for epoch in range(start, 5):
        train.collective.barrier()  # as DDP would: no rank fails before the others have come as far
        rows = sum(len(batch["id"]) for batch in shard.iter_torch_batches(batch_size=10))
        if epoch == 3 and start == 0:
            raise RuntimeError("failure at report 3")
        ray.get(counter.add.remote(rows))
        with tempfile.TemporaryDirectory() as folder:
            json.dump({"epoch": epoch}, open(os.path.join(folder, "state.json"), "w"))
            train.report({"epoch": epoch, "start": start}, checkpoint=Checkpoint.from_directory(folder))

trainer = TorchTrainer(
    train_func,
    train_loop_config={"words": words, "handle": counter},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(failure_config=FailureConfig(max_failures=1)),
    datasets={"train": ray.data.range(100)},
)
result = trainer.fit()
print(result.metrics, ray.get(counter.add.remote(0)), ray.cluster_resources()["CPU"], ray.is_initialized())
ray.shutdown()
print(ray.is_initialized())
"""

STARTS_ONLY = """
import sys
import ray
from ray.air import ScalingConfig, session
from ray.train.torch import TorchTrainer

ray.init(num_cpus=2)

def train_func():
    session.report({"initialized": ray.is_initialized()})

result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()
print(result.metrics["training_iteration"], ray.is_initialized(), "ray._raylet" in sys.modules)
ray.shutdown()
print(ray.is_initialized())
try:
    ray.put(1) if "ray._raylet" in sys.modules else ray.remote
except Exception as error:
    print(type(error).__name__, error)
"""


def run(script: str, tmp_path: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """With ``--as-ray``; or by another command."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    args = [*(command or (sys.executable, "-m", "headway", "run", "--as-ray")), str(path)]
    around = {**os.environ, "HOME": str(tmp_path), "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", **env}
    return subprocess.run(args, env=around, capture_output=True, text=True, timeout=150, cwd=tmp_path)


def test_training_workers_reach_the_actors_of_the_script(tmp_path: Path) -> None:
    done = run(USES_ACTORS, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "{'epoch': 4, 'start': 3} 500 4.0 True" in done.stdout, "every row of five epochs was counted once"
    assert done.stdout.splitlines()[-1] == "False"


def test_a_script_that_only_calls_init_does_not_load_ray(tmp_path: Path) -> None:
    done = run(STARTS_ONLY.split("try:")[0], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 True False", "False"]


def test_without_ray_a_script_that_only_calls_init_runs_too(tmp_path: Path) -> None:
    """A Python that finds everything that is installed here but Ray."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.lower().startswith(("ray", "__editable__", "headway")):
            (packages / entry.name).symlink_to(entry)
    found = {"PYTHONPATH": f"{packages}{os.pathsep}{SOURCE}"}
    plain = run("import ray", tmp_path, sys.executable, "-S", **found)
    assert "No module named 'ray'" in plain.stderr, plain
    done = run(STARTS_ONLY, tmp_path, sys.executable, "-S", "-m", "headway.compat.as_ray", **found)
    assert done.returncode == 0, done.stderr
    *lines, refusal = done.stdout.splitlines()
    assert lines == ["1 True False", "False"]
    assert refusal.endswith("ray.remote needs the package ray, which is not installed: pip install 'ray[default]'")


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("ray.train.Chekpoint", "Headway has no ray.train.Chekpoint: the nearest name is ray.train.Checkpoint"),
        (
            "from ray.train import Nonsense",
            "Headway has no ray.train.Nonsense: the page “parity” of Headway's documentation lists the supported names",
        ),
        ("import ray.train.xgboost", "Headway has no ray.train.xgboost"),
        ("from ray.data.preprocessors import StandardScaler", "Headway has no ray.data.preprocessors"),
        ("ray.data.read_delta", "Headway has no ray.data.read_delta: the page “parity”"),
        ("ray.data.read_sql", "Headway has no ray.data.read_sql yet: read the rows with pandas.read_sql()"),
        ("ray.train.SyncConfig", "Headway has no ray.train.SyncConfig yet: files go straight to storage_path"),
        ("from ray import tune; tune.run", "Headway has no ray.tune.run yet: tuning is not supported"),
        ("from ray.tune.schedulers import ASHAScheduler", "Headway has no ray.tune.schedulers yet"),
        ("from ray.train.tensorflow import TensorflowTrainer", "Headway has no ray.train.tensorflow yet"),
        ("from ray.train.lightning import RayDDPStrategy", "Headway has no ray.train.lightning yet"),
    ],
)
def test_a_missing_name_is_refused_with_the_nearest_one(code: str, sentence: str, tmp_path: Path) -> None:
    done = run(f"import ray, ray.train, ray.data\n{code}", tmp_path)
    assert done.returncode == 1
    assert sentence in done.stderr.splitlines()[-1]


def test_a_notebook_installs_it_even_after_the_real_package_has_begun(tmp_path: Path) -> None:
    script = """
    import ray, ray.train
    real = ray.train.__file__
    ray.init(num_cpus=2)
    kept = ray.put(41)
    import headway.compat.as_ray
    headway.compat.as_ray.install()
    headway.compat.as_ray.install()
    import ray, ray.train
    from ray.train import DataParallelTrainer, report

    def train_func(config):
        report({"found": ray.get(config["kept"]) + 1})

    print(real.endswith("ray/train/__init__.py"), report.__module__, callable(ray.remote))
    print(DataParallelTrainer(train_func, train_loop_config={"kept": kept}).fit().metrics)
    """
    done = run(script, tmp_path, sys.executable)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True headway.compat.as_ray.train True\n{'found': 42}\n"


def test_every_name_of_the_map_leads_somewhere(tmp_path: Path) -> None:
    script = """
    import importlib
    import headway.compat.as_ray
    import headway.train.torch
    from headway.compat.as_ray.name_map import FACES

    headway.compat.as_ray.install()
    for face, names in FACES.items():
        module = importlib.import_module(face)
        for name in names:
            assert getattr(module, name) is not None, (face, name)
    missing = set(headway.train.torch.__all__) - set(FACES["ray.train.torch"])
    print(len(FACES), missing)
    """
    done = run(script, tmp_path, sys.executable)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ set\(\)\n", done.stdout)


def test_a_worker_without_a_session_to_join_says_what_to_do(tmp_path: Path) -> None:
    script = """
    import ray
    from ray.train import DataParallelTrainer

    ray.init()

    def train_func():
        ray.get_actor("nobody")

    DataParallelTrainer(train_func).fit()
    """
    done = run(script, tmp_path)
    assert done.returncode == 1
    assert "ray.get_actor in a training worker needs the driver's Ray session, but there is none" in done.stderr


def test_what_needs_no_session_is_had_without_one(tmp_path: Path) -> None:
    script = """
    import ray
    from ray.util.sgd import v2
    from ray.util import ActorPool
    import ray.cloudpickle as pickle
    from ray.exceptions import RayTaskError
    from ray.train import DataParallelTrainer, report

    def train_func():
        from ray.util.queue import Queue
        assert issubclass(RayTaskError, Exception)
        report({"x": pickle.loads(pickle.dumps(7))})

    print(DataParallelTrainer(train_func).fit().metrics, ActorPool.__name__, callable(ray.util.placement_group))
    """
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "{'x': 7} ActorPool True\n"


def test_an_unreachable_cluster_fails_at_once(tmp_path: Path) -> None:
    script = """
    import sys
    import ray

    def load(reason, load_once=ray._load_once):
        loaded = load_once(reason)
        if services := sys.modules.get("ray._private.services"):
            services._find_address_from_flag = lambda flag: set()  # other programs may have a cluster
        return loaded

    ray._load_once = load
    try:
        ray.init(address="auto")
    except ConnectionError:
        print("none", ray.is_initialized())
    """
    done = run(script, tmp_path, RAY_TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "none False\n"


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("RunConfig(stop={'x': 1})", "RunConfig(stop=...) is not supported: let the function return"),
        ("CheckpointConfig(checkpoint_frequency=2)", "CheckpointConfig(checkpoint_frequency=...) is not supported"),
        ("FailureConfig(fail_fast=True)", "FailureConfig(fail_fast=...) is not supported: max_failures=0"),
    ],
)
def test_options_that_have_gone_are_understood_or_refused_with_a_reason(code: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        eval(code, vars(retired_options))
    understood = retired_options.RunConfig(
        local_dir="/there", verbose=0, stop=None, sync_config=None, log_to_file=False
    )
    assert str(understood.storage_path) == "/there"
    assert understood.logging_config.log_level == "WARNING"
    assert replace(understood, name="a").name == "a"
    assert retired_options.ScalingConfig(2, trainer_resources={"CPU": 0}).num_workers == 2
    assert (
        retired_options.CheckpointConfig(num_to_keep=1, checkpoint_frequency=0, checkpoint_at_end=False).num_to_keep
        == 1
    )


def test_init_twice_is_refused_as_ever(tmp_path: Path) -> None:
    done = run("import ray\nray.init()\nray.init(ignore_reinit_error=True)\nray.init()", tmp_path)
    assert done.returncode == 1
    assert "ray.init() was called twice" in done.stderr


def test_older_reports_and_newer_ones_have_one_name(tmp_path: Path) -> None:
    script = """
    from ray import train
    from ray.train import DataParallelTrainer, ScalingConfig

    def train_func():
        train.report({"a": 1})
        train.report(metrics={"a": 2})
        train.report(a=3)
        try:
            train.report(3)
        except TypeError as error:
            assert "takes a dict of metrics, or metrics as keyword arguments, got 3" in str(error)
        train.save_checkpoint(b=1)
        assert train.load_checkpoint() in (None, {"b": 1})
        return train.world_rank(), train.local_rank(), train.world_size()

    result = DataParallelTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()
    print(list(result.metrics_dataframe["a"].dropna()), result.return_values, result.checkpoint.to_dict())
    """
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[1.0, 2.0, 3.0] [(0, 0, 2), (1, 1, 2)] {'b': 1}\n"


def test_worker_groups_answer_to_ray_get(tmp_path: Path) -> None:
    script = """
    import ray
    from ray.train import Trainer

    class Worker:
        def double(self, x):
            return 2 * x

    trainer = Trainer("torch", num_workers=2)
    workers = trainer.to_worker_group(train_cls=Worker)
    ready, others = ray.wait([w.double.remote(3) for w in workers], num_returns=2)
    print(len(ready), len(others), ray.get(ready))
    print(ray.get([w.double.remote(i) for i, w in enumerate(workers)]), ray.get(workers[0].double.remote(4)))
    workers.shutdown()
    print(trainer.logdir.name)
    """
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"2 0 \[6, 6\]\n\[0, 2\] 8\ntrain_[\d_-]+\n", done.stdout)


def test_options_of_torchrun_scripts_do_not_go_with_it(tmp_path: Path) -> None:
    done = run("", tmp_path, sys.executable, "-m", "headway", "run", "--as-ray", "-n", "2")
    assert done.returncode == 1
    assert "-n cannot be combined with --as-ray: a script written for Ray sets this itself" in done.stderr


def test_errors_show_where_in_the_script_they_were(tmp_path: Path) -> None:
    done = run("from ray.train import ScalingConfig\nScalingConfig(num_workers=-1)", tmp_path)
    assert done.returncode == 1
    assert 'script.py", line 2' in done.stderr


def test_the_older_homes_of_names_lead_to_the_same_things(tmp_path: Path) -> None:
    script = """
    import ray.air, ray.train, ray.sgd
    from ray.air import Checkpoint, CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig, session
    from ray.air.checkpoint import Checkpoint as A
    from ray.air.config import ScalingConfig as B
    from ray.air.result import Result as C
    from ray.air.session import get_checkpoint
    from ray.train.base_trainer import BaseTrainer
    from ray.train.data_parallel_trainer import DataParallelTrainer
    from ray.tune.callback import Callback
    from ray.util.sgd import v2
    from ray.util.sgd.v2 import Trainer

    print(Checkpoint is A is ray.train.Checkpoint, ScalingConfig is B, Result is C is ray.train.Result)
    print(get_checkpoint is session.get_checkpoint, BaseTrainer is DataParallelTrainer, v2.Trainer is Trainer)
    print(issubclass(B, ray.train.ScalingConfig), ray.sgd.Trainer is Trainer, issubclass(ray.train.Trainer, Trainer))
    """
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"] * 9
