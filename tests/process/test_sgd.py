"""The vocabulary of RaySGD v2: processes that stay, rounds in lock-step, results of all ranks."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import headway.data
from headway.compat import sgd
from headway.core.callback import UserCallback
from headway.core.errors import TrainingFailedError, WorkerDied
from headway.frameworks.base import BackendConfig
from support import Driver, becomes_true, is_gone, python, write_script


@pytest.fixture
def trainer() -> Iterator[sgd.Trainer]:
    made = sgd.Trainer(backend="torch", num_workers=2)
    made.start()
    yield made
    made.shutdown()


def pids(trainer: sgd.Trainer) -> list[int]:
    return trainer.run(os.getpid)


# --- workers ---


def test_workers_stay_between_runs_with_all_that_they_know() -> None:
    def remember(config: dict[str, Any]) -> list[str]:
        vars(sys).setdefault("known", []).append(config["word"])
        torch.distributed.barrier()
        return list(vars(sys)["known"])

    trainer = sgd.Trainer("torch", num_workers=2)
    trainer.start(initialization_hook=lambda: vars(sys).setdefault("known", []).append("hook"))
    before = pids(trainer)
    assert trainer.run(remember, config={"word": "a"}) == [["hook", "a"]] * 2
    assert trainer.run(remember, config={"word": "b"}) == [["hook", "a", "b"]] * 2
    assert pids(trainer) == before
    assert before[0] != before[1]
    trainer.shutdown()


def started_with_a_licence() -> sgd.Trainer:
    trainer = sgd.Trainer(BackendConfig(), num_workers=1, resources_per_worker={"licence": 1})
    trainer.start()
    return trainer


@pytest.fixture
def one_licence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_RESOURCES", json.dumps({"licence": 1}))


def test_a_trainer_that_was_forgotten_holds_nothing(one_licence: None) -> None:
    forgotten = started_with_a_licence()
    (worker,) = pids(forgotten)
    del forgotten  # as when a cell of a notebook is run again
    trainer = started_with_a_licence()
    assert becomes_true(lambda: is_gone(worker))
    trainer.shutdown()


def test_a_worker_group_that_cannot_start_holds_nothing(one_licence: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OSError("no space left")

    trainer = sgd.Trainer(BackendConfig(), num_workers=1, resources_per_worker={"licence": 1})
    with monkeypatch.context() as patch:
        patch.setattr("headway.compat.sgd.trainer.Run", fail)
        with pytest.raises(OSError, match="no space left"):
            trainer.to_worker_group(dict)
    started_with_a_licence().shutdown()


def test_a_trainer_that_waits_for_another_one_warns(one_licence: None, caplog: pytest.LogCaptureFixture) -> None:
    first = started_with_a_licence()
    thread = threading.Thread(target=lambda: started_with_a_licence().shutdown())
    thread.start()
    text = f"waiting for 1 'licence': 0 of 1 free ({first.logdir.name}: 1)"
    assert becomes_true(lambda: ("headway", logging.WARNING, text) in caplog.record_tuples), caplog.text
    first.shutdown()
    thread.join(timeout=30)
    assert not thread.is_alive(), "the second trainer got the licence"


def test_what_a_hook_has_set_stays_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hook() -> None:
        os.environ["SET_BY_HOOK"] = "yes"
        os.chdir(tmp_path)

    def look() -> tuple[str | None, str, str | None]:
        return os.environ.get("SET_BY_HOOK"), os.getcwd(), os.environ.get("SET_BY_DRIVER")

    trainer = sgd.Trainer("torch")
    trainer.start(hook)
    assert trainer.run(look) == [("yes", str(tmp_path), None)]
    monkeypatch.setenv("SET_BY_DRIVER", "too")
    assert trainer.run(look) == [("yes", str(tmp_path), "too")]
    trainer.shutdown()


def test_a_worker_that_exits_between_two_runs_is_replaced(trainer: sgd.Trainer) -> None:
    before = pids(trainer)
    os.kill(before[1], signal.SIGKILL)
    after = pids(trainer)
    assert not set(before) & set(after), "they can only go on together"


def test_an_interrupt_of_an_idle_worker_changes_nothing(trainer: sgd.Trainer, tmp_path: Path) -> None:
    def call() -> int:
        with open(tmp_path / "calls", "a") as file:
            file.write("called\n")
        return os.getpid()

    before = trainer.run(call)
    for pid in before:
        os.kill(pid, signal.SIGINT)
    assert trainer.run(call) == before
    assert (tmp_path / "calls").read_text() == "called\n" * 4


def test_a_stop_that_comes_too_late_for_its_run_does_not_stop_the_next_one(trainer: sgd.Trainer) -> None:
    class StopsTooLate(UserCallback):
        def after_run(self, run_context: object, error: BaseException | None) -> None:
            time.sleep(0.2)
            assert trainer._run is not None
            trainer._run.stop()

    def train_func() -> str:
        time.sleep(0.5)
        return "returned"

    assert trainer.run(train_func, callbacks=[StopsTooLate()]) == ["returned"] * 2
    assert trainer.run(train_func) == ["returned"] * 2


def test_a_run_gives_what_every_rank_returned_whatever_that_is(trainer: sgd.Trainer) -> None:
    def train_func() -> Any:
        return torch.full((2,), float(sgd.world_rank())), {sgd.local_rank(): sgd.world_size()}

    (first, of_first), (second, of_second) = trainer.run(train_func)
    assert first.tolist() == [0, 0]
    assert second.tolist() == [1, 1]
    assert (of_first, of_second) == ({0: 2}, {1: 2})


def test_a_function_gets_its_config_or_an_empty_one(trainer: sgd.Trainer) -> None:
    assert trainer.run(lambda config: config, config={"a": 1}) == [{"a": 1}] * 2
    assert trainer.run(lambda config: config) == [{}] * 2
    assert trainer.run(lambda: "none") == ["none"] * 2
    with pytest.raises(ValueError, match="must take no parameter or one"):
        trainer.run(lambda config, more: None)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="no backend 'troch'; available: 'torch'"):
        sgd.Trainer("troch")
    with pytest.raises(TypeError, match="backend must be a name or a BackendConfig"):
        sgd.Trainer(3)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="'horovod' is not supported yet"):
        sgd.Trainer("horovod")
    with pytest.raises(NotImplementedError, match="tuning is not supported"):
        sgd.Trainer("torch").to_tune_trainable(lambda: None)
    with pytest.raises(ValueError, match="num_workers must be a positive number, got 0"):
        sgd.Trainer("torch", num_workers=0)
    trainer = sgd.Trainer("torch")
    with pytest.raises(RuntimeError, match=r"call start\(\) before run\(\)"):
        trainer.run(lambda: None)
    assert trainer.latest_run_dir is None
    assert trainer.latest_checkpoint is None


def test_ctrl_c_in_a_run_or_beside_resting_workers_leaves_nothing(tmp_path: Path) -> None:
    script = """
        import sys, time
        from headway.compat import sgd

        def train_func():
            print("working", flush=True)
            time.sleep(60)

        trainer = sgd.Trainer("torch", num_workers=2)
        trainer.start()
        trainer.run(lambda: None)
        try:
            trainer.run(train_func)
        except KeyboardInterrupt:
            print("interrupted", trainer.run(lambda: 1), flush=True)
        time.sleep(60)
    """
    driver = Driver(write_script(tmp_path, script))
    driver.wait_for("[r1] working")
    driver.process.send_signal(signal.SIGINT)
    driver.wait_for("interrupted [1, 1]")
    driver.process.send_signal(signal.SIGINT)
    assert driver.process.wait(60) in (1, 130, -signal.SIGINT), driver.log.read_text()


def test_what_a_program_leaves_open_is_ended_in_order(tmp_path: Path) -> None:
    script = """
        import time
        from headway.compat import sgd

        class Idle:
            pass

        trainer = sgd.Trainer("torch")
        trainer.start()
        iterator = trainer.run_iterator(lambda: time.sleep(60))
        other = sgd.Trainer("torch").to_worker_group(Idle)
    """
    done = python(write_script(tmp_path, script))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the program is exiting while run run_001 is running: aborting") == 2
    assert "failed" not in done.stderr


# --- directories ---


def test_every_trainer_and_every_run_has_its_own_directory(tmp_path: Path) -> None:
    results = Path(os.environ["HEADWAY_RESULTS"])
    assert re.fullmatch(r"sgd_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(_2)?", sgd.Trainer("torch").logdir.name)
    assert sgd.Trainer("torch").logdir.parent == results
    assert sgd.Trainer("torch", logdir="mine").logdir == results / "mine"
    trainer = sgd.Trainer("torch", logdir=str(tmp_path / "there"))
    assert trainer.logdir == tmp_path / "there"
    trainer.start()
    for number in ("run_001", "run_002"):
        trainer.run(lambda: None)
        assert trainer.latest_run_dir == tmp_path / "there" / number
    trainer.shutdown()
    again = sgd.Trainer("torch", logdir=tmp_path / "there")
    again.start()
    again.run(lambda: None)
    again.shutdown()
    assert again.latest_run_dir == tmp_path / "there/run_003", "nothing of another trainer's is touched"


# --- failures ---


def test_what_a_function_raises_is_raised_as_it_is_and_never_tried_again(trainer: sgd.Trainer, tmp_path: Path) -> None:
    class Mine(Exception):
        pass

    def train_func() -> None:
        with (tmp_path / f"tries-{sgd.world_rank()}").open("a") as file:
            file.write("x")
        raise Mine("this and no other")

    with pytest.raises(Mine, match="this and no other"):
        trainer.run(train_func)
    assert (tmp_path / "tries-0").read_text() == "x"
    assert trainer.run(lambda: 1) == [1, 1], "the trainer is as good as new"


def test_dead_workers_are_replaced_and_go_on_from_the_newest_checkpoint(trainer: sgd.Trainer) -> None:
    def train_func() -> Any:
        checkpoint = sgd.load_checkpoint() or {}
        for epoch in range(checkpoint.get("epoch", -1) + 1, 4):
            sgd.save_checkpoint(epoch=epoch)
            if epoch == 1 and not checkpoint and sgd.world_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        return checkpoint

    assert trainer.run(train_func) == [{"epoch": 1}] * 2, "rank 0 has waited for rank 1 before it saved again"
    assert trainer.latest_checkpoint == {"epoch": 3}
    assert trainer.latest_checkpoint_path is not None
    assert trainer.latest_checkpoint_path.name == "checkpoint_000004"


def test_retries_have_an_end() -> None:
    trainer = sgd.Trainer("torch", num_workers=2, max_retries=1)
    trainer.start()
    with pytest.raises(RuntimeError, match="the run failed in attempt 2") as caught:
        trainer.run(lambda: os._exit(3))
    assert isinstance(caught.value, TrainingFailedError)
    trainer.shutdown()


def test_ranks_that_make_different_calls_get_an_error(trainer: sgd.Trainer) -> None:
    heard: list[Any] = []

    class Hear(sgd.SGDCallback):
        def handle_result(self, results: Any, **info: Any) -> None:
            heard.append([result["i"] for result in results])

    def fewer() -> None:
        for i in range(2 + sgd.world_rank()):
            sgd.report(i=i)

    def other() -> None:
        sgd.report(i=0)
        sgd.report(i=1) if sgd.world_rank() else sgd.save_checkpoint(i=1)

    with pytest.raises(RuntimeError, match=r"rank 1 waits in report\(\), which rank 0 will never reach"):
        trainer.run(fewer, callbacks=[Hear()])
    assert heard == [[0, 0], [1, 1]], "rounds that were complete stay so"
    with pytest.raises(RuntimeError, match=r"waits in .* while rank . waits in .*the same number of times"):
        trainer.run(other)


# --- callbacks ---


def test_callbacks_hear_the_beginning_every_round_and_the_end(trainer: sgd.Trainer) -> None:
    heard: list[Any] = []

    class Hear(sgd.SGDCallback):
        def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
            heard.append((Path(logdir).name, config))

        def handle_result(self, results: list[dict[str, Any]], **info: Any) -> None:
            heard.append([(result["rank"], result["_training_iteration"]) for result in results])
            assert all(isinstance(result["_timestamp"], int) for result in results)
            assert all(isinstance(result["_time_this_iter_s"], float) for result in results)

        def finish_training(self, error: bool = False, **info: Any) -> None:
            heard.append(error)

    def train_func(config: dict[str, Any]) -> None:
        for _ in range(2):
            sgd.report(rank=sgd.world_rank())
        sgd.save_checkpoint(a=1)
        if config["raise"]:
            raise ValueError

    trainer.run(train_func, config={"raise": False}, callbacks=[Hear()])
    assert heard == [("run_001", {"raise": False}), [(0, 1), (1, 1)], [(0, 2), (1, 2)], False]
    heard.clear()
    with pytest.raises(ValueError):  # noqa: PT011
        trainer.run(train_func, config={"raise": True}, callbacks=[Hear()])
    assert heard[-1] is True


def test_ready_made_callbacks_write_below_the_runs_directory(
    trainer: sgd.Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("CRC32C_SW_MODE", "auto")  # it is set by what TensorBoard needs

    def train_func() -> None:
        for epoch in range(2):
            sgd.report(epoch=epoch, rank=sgd.world_rank())

    flow = f"file://{tmp_path}/mlruns"
    trainer.run(
        train_func,
        callbacks=[
            sgd.JsonLoggerCallback(),
            sgd.JsonLoggerCallback(filename="all.json", workers_to_log=None),
            sgd.CSVCallback(),
            sgd.TBXLoggerCallback(),
            sgd.MlflowCallback(tracking_uri=flow, experiment_name="mine"),
            sgd.PrintCallback(),
        ],
    )
    folder = trainer.latest_run_dir
    assert folder is not None
    rounds = json.loads((folder / "results.json").read_text())
    assert [[result["epoch"] for result in each] for each in rounds] == [[0], [1]]
    everybody = json.loads((folder / "all.json").read_text())
    assert [[result["rank"] for result in each] for each in everybody] == [[0, 1], [0, 1]]
    header, *lines = (folder / "results.csv").read_text().splitlines()
    assert header.startswith("epoch,rank,_timestamp")
    assert [line.split(",")[0] for line in lines] == ["0", "1"]
    [events] = folder.glob("events.out.tfevents.*")
    assert b"ray/train/epoch" in events.read_bytes()
    assert list((tmp_path / "mlruns").rglob("metrics/epoch"))
    assert '[{"epoch": 0' in capfd.readouterr().out


def test_a_callback_for_weights_and_biases_logs_one_run(
    trainer: sgd.Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its package is large and starts a service, so only the calls to it are tested."""
    said: list[Any] = []

    class Run:
        def log(self, numbers: dict[str, float], step: int) -> None:
            said.append((numbers["epoch"], step))

        def finish(self, exit_code: int) -> None:
            said.append(exit_code)

    class Module:
        @staticmethod
        def init(**options: Any) -> Run:
            said.append((options["project"], options["name"], options["config"]))
            return Run()

    monkeypatch.setitem(sys.modules, "wandb", Module)

    def train_func(config: dict[str, Any]) -> None:
        sgd.report(epoch=0)

    trainer.run(train_func, config={"lr": 1}, callbacks=[sgd.WandbCallback(project="mine")])
    assert said == [("mine", "run_001", {"lr": 1}), (0, 1), 0]


# --- iterating ---


def test_a_run_can_be_iterated_over(trainer: sgd.Trainer) -> None:
    def train_func() -> int:
        for i in range(3):
            sgd.report(i=i)
        return 7

    iterator = trainer.run_iterator(train_func)
    assert not iterator.is_finished()
    with pytest.raises(RuntimeError, match="not finished"):
        iterator.get_final_results()
    assert [[result["i"] for result in results] for results in iterator] == [[0, 0], [1, 1], [2, 2]]
    assert iterator.is_finished()
    assert iterator.get_final_results() == [7, 7]
    assert trainer.run_iterator(train_func).get_final_results(force=True) == [7, 7]

    def fail() -> None:
        sgd.report(i=0)
        raise KeyError("own")

    failing = trainer.run_iterator(fail)
    with pytest.raises(KeyError):
        list(failing)


# --- checkpoints ---


def test_checkpoints_are_counted_from_one_and_the_best_can_be_read(trainer: sgd.Trainer) -> None:
    def train_func() -> None:
        for loss in (3.0, 1.0, float("nan"), 2.0):
            sgd.save_checkpoint(loss=loss, rank=sgd.world_rank())

    strategy = sgd.CheckpointStrategy(2, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    trainer.run(train_func, checkpoint_strategy=strategy)
    assert trainer.latest_checkpoint == {"loss": 2.0, "rank": 0}, "rank 0's alone"
    assert trainer.best_checkpoint == {"loss": 1.0, "rank": 0}
    assert trainer.best_checkpoint_path is not None
    assert trainer.best_checkpoint_path.name == "checkpoint_000002"
    assert trainer.latest_checkpoint_dir == trainer.best_checkpoint_path.parent
    assert trainer.latest_run_dir == trainer.best_checkpoint_path.parent.parent

    def load() -> Any:
        return sgd.load_checkpoint()

    assert trainer.run(load) == [None, None], "each run begins anew"
    assert trainer.run(load, checkpoint={"a": torch.ones(1)}) == [{"a": torch.ones(1)}] * 2


def test_a_run_may_begin_with_a_checkpoint_by_its_path(trainer: sgd.Trainer) -> None:
    trainer.run(lambda: sgd.save_checkpoint(weights=torch.arange(3), epoch=1))
    path = trainer.latest_checkpoint_path
    assert path is not None
    [loaded, _] = trainer.run(sgd.load_checkpoint, checkpoint=path)
    assert loaded["epoch"] == 1
    assert loaded["weights"].tolist() == [0, 1, 2]


def test_nothing_is_written_if_nothing_is_to_be_kept() -> None:
    trainer = sgd.Trainer("torch")
    trainer.start()
    trainer.run(lambda: sgd.save_checkpoint(epoch=1), checkpoint_strategy=sgd.CheckpointStrategy(num_to_keep=0))
    assert trainer.latest_checkpoint == {"epoch": 1}
    assert trainer.latest_checkpoint_path is None
    assert trainer.latest_checkpoint_dir is not None
    assert not list(trainer.latest_checkpoint_dir.iterdir())
    trainer.shutdown()
    reached = trainer._reached
    assert reached is not None
    assert reached.checkpoint is not None
    shutil.rmtree(Path(reached.checkpoint.path).parents[1])  # it would be gone with the program


def test_after_shutdown_all_can_still_be_read() -> None:
    trainer = sgd.Trainer("torch")
    trainer.start()
    trainer.run(lambda: sgd.save_checkpoint(epoch=1))
    trainer.shutdown()
    trainer.shutdown()
    assert trainer.latest_checkpoint == {"epoch": 1}
    with pytest.raises(RuntimeError, match="not running"):
        trainer.run(lambda: None)


# --- data ---


def test_a_dataset_is_split(trainer: sgd.Trainer) -> None:
    def train_func() -> Any:
        assert sgd.get_data_shard is sgd.get_dataset_shard
        rows = [row["id"] for row in sgd.get_dataset_shard().iter_rows()]
        again = [row["id"] for row in sgd.get_dataset().get_shard(sgd.world_rank()).iter_rows()]
        return sorted(rows), sorted(again)

    (first, again), (second, _) = trainer.run(train_func, dataset=headway.data.range(10))
    assert first == again
    assert sorted(first + second) == list(range(10))

    def named() -> int:
        return len(list(sgd.get_dataset_shard("b").iter_rows()))

    assert trainer.run(named, dataset={"a": headway.data.range(4), "b": headway.data.range(6)}) == [3, 3]


# --- objects on workers ---


def test_objects_stay_on_workers_until_shutdown(trainer: sgd.Trainer) -> None:
    class Adder:
        def __init__(self, first: int, *, more: int) -> None:
            self.sum = first + more

        def add(self, number: int) -> tuple[int, int]:
            self.sum += number
            return sgd.world_rank(), self.sum

        def fail(self) -> None:
            raise KeyError("mine")

        def die(self) -> None:
            os._exit(1)

    group = trainer.to_worker_group(Adder, 1, more=2)
    assert len(group) == 2
    assert [worker.add.remote(1).result() for worker in group] == [(0, 4), (1, 4)]
    assert group[1].add.remote(number=5).result() == (1, 9), "it is the same object"
    with pytest.raises(KeyError, match="mine"):
        group[0].fail.remote().result()
    with pytest.raises(RuntimeError, match="busy"):
        trainer.to_worker_group(Adder, 1)
    with pytest.raises(RuntimeError, match="busy"):
        trainer.run(lambda: None)
    group.shutdown()
    assert trainer.run(lambda: 1) == [1, 1]

    group = trainer.to_worker_group(Adder, 1, more=2)
    with pytest.raises(WorkerDied):
        group[0].die.remote().result(timeout=30)
    group.shutdown()
    assert trainer.run(lambda: 1) == [1, 1]


def test_an_object_that_cannot_be_made_says_why(trainer: sgd.Trainer) -> None:
    class Bad:
        def __init__(self) -> None:
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        trainer.to_worker_group(Bad)
    assert trainer.run(lambda: 1) == [1, 1]
