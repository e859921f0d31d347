"""A function becomes a run: real processes, a real directory."""

from __future__ import annotations

import functools
import json
import os
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headway import train
from headway.storage.run.reader import RunReader
from support import fit, journal, plain_trainer, python, save, write_script


def test_every_worker_runs_the_function_and_rank_zero_answers() -> None:
    def train_func(config: dict[str, Any]) -> int:
        context = train.get_context()
        for step in range(3):
            train.report({"step": step, "rank": context.get_world_rank(), "rate": config["rate"]})
        return context.get_world_size()

    result = fit(train_func, 3, config={"rate": 0.5})

    assert result.metrics == {"step": 2, "rank": 0, "rate": 0.5}
    assert result.return_value == 3
    assert result.error is None
    assert result.state == "FINISHED"
    assert result.config == {"rate": 0.5}
    frame = result.metrics_dataframe
    assert frame is not None
    assert list(frame["step"]) == [0, 1, 2]


def test_the_run_directory_tells_everything() -> None:
    def train_func() -> None:
        print("to stdout")
        os.system("echo from a child; echo to stderr >&2")
        train.report({"loss": 1.0})

    path = Path(fit(train_func, 2, name="told").path)

    description = json.loads((path / "run.json").read_text())
    assert description["format"] == 1
    assert description["name"] == "told"
    assert description["openings"][0]["function"].endswith("train_func")
    states = [event["state"] for event in journal(path) if event["event"] == "state"]
    assert states == ["STARTING", "RUNNING", "STOPPING", "FINISHED"]
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert sorted((line["rank"], line["seq"], line["metrics"]["loss"]) for line in lines[1:]) == [
        (0, 0, 1.0),
        (1, 0, 1.0),
    ]
    for rank in (0, 1):
        assert (path / f"logs/rank-{rank}.out").read_text() == "to stdout\nfrom a child\n"
        assert (path / f"logs/rank-{rank}.err").read_text() == "to stderr\n"


def test_a_process_runs_many_fits() -> None:
    def train_func(config: dict[str, int]) -> int:
        return config["n"]

    assert [fit(train_func, 2, config={"n": n}).return_value for n in range(5)] == [0, 1, 2, 3, 4]


def test_runs_may_overlap_in_threads() -> None:
    found: dict[int, int] = {}

    def train_func(config: dict[str, int]) -> int:
        train.collective.barrier()
        return config["n"]

    def work(n: int) -> None:
        found[n] = fit(train_func, 2, config={"n": n}).return_value

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {0: 0, 1: 1, 2: 2, 3: 3}


def test_closures_and_lambdas_travel() -> None:
    base = [40]

    def outer() -> Any:
        more = 2
        return lambda config: base[0] + more + config["x"]

    assert fit(outer(), 2, config={"x": 100}).return_value == 142


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        from headway import train

        class Model:
            def __init__(self, size): self.size = size

        SIZE = 7

        def helper(): return Model(SIZE)

        def train_func():
            import pickle
            assert pickle.loads(pickle.dumps(helper())).size == 7  # classes of __main__ pickle again in the worker
            return helper()

        result = train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(2)).fit()
        print("size", result.return_value.size, type(result.return_value) is Model)
        """,
    )
    done = python(script)
    assert "size 7 True" in done.stdout, done.stderr


def test_python_dash_c_works() -> None:
    code = "from headway import train; print(train.DataParallelTrainer(lambda: 6 * 7).fit().return_value)"
    done = python("-c", code)
    assert done.stdout == "42\n", done.stderr


def test_workers_find_the_modules_beside_the_script(tmp_path: Path) -> None:
    write_script(tmp_path, "VALUE = 'mine'", "my_helper.py")
    script = write_script(
        tmp_path,
        """
        from headway import train
        import my_helper
        def train_func():
            import my_helper as again
            return again.VALUE + my_helper.VALUE
        print(train.DataParallelTrainer(train_func).fit().return_value)
        """,
    )
    done = python(script)
    assert done.stdout == "minemine\n", done.stderr


def test_workers_see_the_environment_as_it_is_now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fit(lambda: None)  # the fork server runs, and is old
    monkeypatch.setenv("SET_LATE", "yes")
    monkeypatch.delenv("HOME")
    monkeypatch.chdir(tmp_path)

    def train_func() -> tuple[str | None, str | None, str]:
        return os.environ.get("SET_LATE"), os.environ.get("HOME"), os.getcwd()

    assert fit(train_func).return_value == ("yes", None, str(tmp_path))


def test_worker_runtime_env_wins() -> None:
    result = fit(lambda: os.environ["WORLD"] + os.environ["RANK"], worker_runtime_env={"env_vars": {"WORLD": "mine"}})
    assert result.return_value == "mine0"


def test_ranks_are_in_the_usual_variables() -> None:
    def train_func() -> None:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
        train.report({name: os.environ[name] for name in names})

    path = Path(fit(train_func, 2).path)
    for rank in (0, 1):
        metrics = RunReader.at(path).reports(rank)[0].metrics
        assert metrics.pop("MASTER_PORT").isdigit()
        assert metrics == {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "2",
            "NODE_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
        }


def test_the_context_tells_where_a_worker_stands() -> None:
    def train_func() -> dict[str, Any]:
        context = train.get_context()
        return {
            "ranks": (context.get_world_rank(), context.get_local_rank(), context.get_node_rank()),
            "sizes": (context.get_world_size(), context.get_local_world_size()),
            "names": (context.get_experiment_name(), context.get_trial_name()),
            "resources": context.get_trial_resources(),
            "metadata": context.get_metadata(),
            "paths": (context.get_trial_dir(), context.get_storage().experiment_fs_path),
            "built": context.get_storage().build_checkpoint_path_from_name("x"),
        }

    trainer = train.DataParallelTrainer(train_func, run_config=train.RunConfig(name="where"), metadata={"by": "me"})
    result = trainer.fit()
    assert result.return_value == {
        "ranks": (0, 0, 0),
        "sizes": (1, 1),
        "names": ("where", "where"),
        "resources": {"CPU": 1},
        "metadata": {"by": "me"},
        "paths": (result.path, result.path),
        "built": f"{result.path}/checkpoints/x",
    }


def test_every_worker_has_random_numbers_of_its_own_and_a_restart_repeats_them() -> None:
    def train_func() -> None:
        train.report({"python": random.random()})
        if train.get_context().get_world_rank() == 0 and not os.path.exists("/tmp/never"):
            os._exit(1)

    with pytest.raises(train.TrainingFailedError) as caught:
        fit(train_func, 2, max_failures=1)
    lines = (Path(caught.value.result.path) / "metrics.jsonl").read_text().splitlines()
    drawn: dict[int, set[float]] = {0: set(), 1: set()}
    for line in map(json.loads, lines):
        if "rank" in line:
            drawn[line["rank"]].add(line["metrics"]["python"])
    assert len(drawn[0]) == 1, "the second attempt began like the first"
    assert drawn[0] != drawn[1]


def test_a_run_has_a_fresh_name_unless_it_is_given_one() -> None:
    paths = {fit(lambda: None).path for _ in range(3)}
    assert len(paths) == 3
    assert all(Path(path).name.startswith("DataParallelTrainer_2") for path in paths)


def test_a_result_reads_like_a_result() -> None:
    text = str(fit(lambda: train.report({"loss": 0.123456789}), name="readable"))
    assert text.splitlines()[:3] == ["Result(", "  state      FINISHED", "  metrics    loss=0.1235"]


def test_a_result_comes_back_from_its_path() -> None:
    def train_func() -> None:
        train.report({"loss": 2})
        raise ValueError("no")

    with pytest.raises(train.TrainingFailedError):
        fit(train_func, name="later")
    results = os.environ["HEADWAY_RESULTS"]
    again = train.Result.from_path(f"{results}/later")
    assert again.metrics == {"loss": 2}
    assert again.state == "FAILED"
    assert str(again.error) == "rank 0 raised ValueError: no"
    with pytest.raises(train.StorageError, match="not a run directory"):
        train.Result.from_path(results)


def test_metrics_are_plain_data_and_come_back_as_they_were() -> None:
    def train_func() -> None:
        import numpy

        train.report({"f": numpy.float32(0.5), "i": numpy.int64(3), "a": numpy.arange(3), "nan": float("nan")})

    metrics = fit(train_func).metrics
    assert metrics is not None
    assert metrics.pop("nan") != metrics.get("nan")
    assert metrics == {"f": 0.5, "i": 3, "a": [0, 1, 2]}


def test_report_accepts_no_metrics_at_all() -> None:
    assert fit(lambda: train.report({})).metrics == {}


def test_a_nested_run_works() -> None:
    def inner() -> int:
        return train.get_context().get_world_size()

    def outer() -> int:
        trainer = train.DataParallelTrainer(inner, scaling_config=train.ScalingConfig(2))
        result: int = trainer.fit().return_value
        return result

    assert fit(outer).return_value == 2


def test_a_handle_gives_reports_as_they_come(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def train_func() -> str:
        import time

        train.report({"step": 0})
        while not gate.exists():
            time.sleep(0.01)
        train.report({"step": 1})
        return "done"

    run = plain_trainer(train_func, 2).start()
    reports = run.reports()
    assert next(reports).metrics == {"step": 0}
    assert run.running
    gate.touch()
    assert [report.metrics["step"] for report in reports] == [1]
    assert run.result().return_value == "done"
    assert not run.running
    everyone = sorted((report.rank, report.seq) for report in run.reports(rank=None))
    assert everyone == [(0, 0), (0, 1), (1, 0), (1, 1)], "an iterator that comes late still sees all"


def test_a_handle_stops_a_run_and_keeps_what_it_reached() -> None:
    def train_func() -> None:
        import time

        train.report({"step": 0})
        while True:
            time.sleep(0.01)

    run = plain_trainer(train_func, 2).start()
    next(run.reports())
    run.stop()
    result = run.result()
    assert result.state == "STOPPED"
    assert result.metrics == {"step": 0}


def test_a_handle_raises_what_fit_would() -> None:
    def train_func() -> None:
        raise KeyError("lost")

    run = plain_trainer(train_func).start()
    assert list(run.reports()) == []
    with pytest.raises(train.TrainingFailedError, match="KeyError"):
        run.result()


def test_elastic_counts_start_with_what_there_is_room_for() -> None:
    scaling = train.ScalingConfig(num_workers=(1, 4), resources_per_worker={"CPU": 1})
    trainer = train.DataParallelTrainer(lambda: train.get_context().get_world_size(), scaling_config=scaling)
    assert 1 <= trainer.fit().return_value <= 4


class Callable:
    """A training function may be an object."""

    def __call__(self, config: dict[str, int]) -> int:
        return config["x"] + 1


@functools.lru_cache
def cached() -> str:
    return "cached"


def test_a_function_may_be_an_object_or_cached() -> None:
    assert fit(Callable(), config={"x": 1}).return_value == 2
    assert fit(cached).return_value == "cached"


def test_objects_of_the_script_itself_travel(tmp_path: Path) -> None:
    script = """
        import sys
        from dataclasses import dataclass
        from headway import train

        @dataclass
        class Settings:
            rate: float

        class Loop:
            def __call__(self):
                return Settings(train.get_context().get_metadata()["settings"].rate * 2), sys.argv[1:]

        trainer = train.DataParallelTrainer(Loop(), metadata={"settings": Settings(0.5)})
        print(trainer.fit().return_value)
    """
    done = python(write_script(tmp_path, script), "--rate", "3")
    assert "(Settings(rate=1.0), ['--rate', '3'])" in done.stdout, done.stderr


def test_what_another_attempt_would_only_repeat_is_not_tried_again(tmp_path: Path) -> None:
    def returns_a_lock() -> Any:
        (tmp_path / f"try-{os.getpid()}").touch()
        return threading.Lock()

    with pytest.raises(train.TrainingFailedError, match="returned a lock that cannot be sent back"):
        fit(returns_a_lock, max_failures=3, storage_path=tmp_path / "runs")
    assert len(list(tmp_path.glob("try-*"))) == 1


def test_nested_metrics_are_shown_and_tabulated_by_their_path(tmp_path: Path) -> None:
    result = fit(lambda: train.report({"val": {"acc": 0.5}}))
    assert "val/acc=0.5" in repr(result)
    assert result.metrics_dataframe is not None
    assert list(result.metrics_dataframe["val/acc"]) == [0.5]


def test_a_checkpoint_without_the_metric_to_rank_it_by_is_reported_once(capfd: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        for _ in range(3):
            with tempfile.TemporaryDirectory() as folder:
                train.report({"loss": 1}, save(folder, a="1"))

    fit(train_func, checkpoint_config=train.CheckpointConfig(2, "acc"))
    err = capfd.readouterr().err
    assert err.count("has no metric 'acc' to rank it by: it counts as the worst (it has loss)") == 1


def test_a_handle_can_be_waited_for_a_while() -> None:
    run = plain_trainer(lambda: time.sleep(0.5)).start()
    assert repr(run) == f"Run('{run.path}', running)"
    with pytest.raises(TimeoutError, match="still running after"):
        run.result(timeout_s=0.1)
    run.result()
    assert repr(run) == f"Run('{run.path}', ended)"
