"""Validation beside training: separate processes that neither delay, fail nor outlive the run."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from headway import train
from headway.cli import main
from headway.core.checkpoints import ValidationRecord
from headway.storage.checkpoint.validation_record import write_validation
from headway.storage.run import layout
from headway.storage.run.reader import RunReader
from support import Driver, alive, is_gone, journal, wait_until, write_script

Status = train.ReportedCheckpointStatus


def trainer(
    function: Any, validate: Any, num_workers: int = 1, config: Any = None, defaults: Any = None, **options: Any
) -> train.DataParallelTrainer:
    if "max_failures" in options:
        options["failure_config"] = train.FailureConfig(options.pop("max_failures"))
    if "keep" in options:
        options["checkpoint_config"] = options.pop("keep")
    max_concurrent = options.pop("max_concurrent", 2)
    validation = train.ValidationConfig(validate, defaults, max_concurrent=max_concurrent) if validate else None
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers),
        run_config=train.RunConfig(**options),
        validation_config=validation,
    )


def report(step: int, validation: Any = True, **metrics: Any) -> None:
    train.report({"step": step, **metrics}, train.Checkpoint.from_dict({"step": step}), validation=validation)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.005)


def kept(result: train.Result) -> list[int]:
    return [saved.manifest.metrics["step"] for saved in RunReader.at(Path(result.path)).checkpoints()]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_continues_while_several_checkpoints_are_validated(tmp_path: Path, num_workers: int) -> None:
    """No validation ends before both have begun and training has made ten more reports."""

    def validate(checkpoint: train.Checkpoint) -> dict[str, Any]:
        step = checkpoint.to_dict()["step"]
        (tmp_path / f"begun-{step}").touch()
        for name in ("begun-0", "begun-1", "trained"):
            wait_for(tmp_path / name)
        return {"accuracy": step / 10, "pid": os.getpid()}

    def train_func() -> tuple[int, list[str]]:
        for step in range(2):
            report(step)
        for step in range(10):
            train.report({"step": step})
        if train.get_context().get_world_rank() == 0:
            (tmp_path / "trained").touch()
        return os.getpid(), [found.status.name for found in train.get_all_reported_checkpoints()]

    result = trainer(train_func, validate, num_workers).fit()
    pid, statuses = result.return_value
    assert statuses == ["VALIDATED", "VALIDATED"]
    metrics = [metrics for _, metrics in result.best_checkpoints]
    assert [m["accuracy"] for m in metrics] == [0.0, 0.1]
    assert len({pid, os.getpid(), *(m["pid"] for m in metrics)}) == (4 if num_workers else 3)
    assert result.metrics == {"step": 9}, "the last report, as always"


def test_validations_start_with_the_oldest_and_respect_max_concurrent(tmp_path: Path) -> None:
    def validate(checkpoint: train.Checkpoint) -> dict[str, Any]:
        step = checkpoint.to_dict()["step"]
        with (tmp_path / "log").open("a") as log:
            log.write(f"{step} ")
        time.sleep(0.02)
        with (tmp_path / "log").open("a") as log:
            log.write(f"{step} ")
        return {}

    def train_func() -> None:
        for step in range(4):
            report(step)

    trainer(train_func, validate, max_concurrent=1).fit()
    assert (tmp_path / "log").read_text().split() == ["0", "0", "1", "1", "2", "2", "3", "3"]


def test_validated_metrics_rank_checkpoints_and_pending_ones_are_not_deleted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """All four are kept until training is over; then each is ranked as its score comes in."""

    def validate(checkpoint: train.Checkpoint, scores: list[int]) -> dict[str, Any]:
        wait_for(tmp_path / "trained")
        return {"score": scores[checkpoint.to_dict()["step"]]}

    def train_func() -> int:
        for step in range(4):
            report(step)
        found = train.get_all_reported_checkpoints(train.CheckpointConsistencyMode.COMMITTED)
        (tmp_path / "trained").touch()
        return len(found)

    best_of_one = train.CheckpointConfig(1, "score", "max")
    defaults = train.ValidationTaskConfig({"scores": [1, 3, 2, 0]})
    result = trainer(train_func, validate, defaults=defaults, keep=best_of_one).fit()
    assert result.return_value == 4
    assert kept(result) == [1, 3], "the best and the newest"
    [(checkpoint, metrics)] = result.best_checkpoints
    assert checkpoint.to_dict() == {"step": 1}
    assert metrics == {"step": 1, "score": 3}
    best = result.get_best_checkpoint("score", "max")
    assert best is not None
    assert best.path == checkpoint.path
    assert "has no metric 'score'" not in capfd.readouterr().err
    assert main(["ckpt", "ls", result.path]) == 0
    assert main(["ckpt", "why", result.path]) == 0
    out = capfd.readouterr().out
    assert "VALIDATED" in out
    assert "score=3" in out
    assert "kept: 1st of the 1 with the highest score (3)" in out
    assert "deleted: not among the 1 with the highest score (2)" in out


def test_a_failed_validation_never_fails_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def validate(checkpoint: train.Checkpoint, how: str) -> Any:
        print("how", how)
        match how:
            case "raise":
                raise KeyError("no such split")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                sys.exit(3)
            case "number":
                return 0.9
            case "object":
                return {"model": object()}
            case _:
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
                (tmp_path / "child").write_text(str(child.pid))
                time.sleep(60)
        return {}

    def train_func() -> list[tuple[dict[str, Any], str]]:
        for step, how in enumerate(("raise", "die", "exit", "number", "object")):
            report(step, train.ValidationTaskConfig({"how": how}), loss=step)
        report(5, train.ValidationTaskConfig({"how": "hang"}, timeout_s=3), loss=5)
        return [(found.metrics, found.status.name) for found in train.get_all_reported_checkpoints()]

    result = trainer(train_func, validate).fit()
    assert result.state == "FINISHED"
    assert [status for _, status in result.return_value] == ["VALIDATION_FAILED"] * 5 + ["VALIDATION_TIMEOUT"]
    assert [metrics["loss"] for metrics, _ in result.return_value] == list(range(6)), "they keep what training said"
    told = capfd.readouterr().err
    for sentence in (
        "the validation of checkpoint_000000 failed: KeyError: 'no such split'",
        "checkpoint_000001 failed: its process was killed (SIGKILL",
        "checkpoint_000002 failed: SystemExit: called sys.exit(3)",
        "checkpoint_000003 failed: the validation function must return a dict of metrics, it returned a float",
        "checkpoint_000004 failed: metrics['model'] is a object",
        "checkpoint_000005 failed: it took longer than 3 s",
    ):
        assert sentence in told
    logs = Path(result.path, "logs")
    assert (logs / "validation-checkpoint_000000.out").read_text() == "how raise\n"
    assert "no such split" in (logs / "validation-checkpoint_000000.err").read_text()
    wait_until(lambda: is_gone(int((tmp_path / "child").read_text())))
    [last] = [event for event in journal(Path(result.path)) if event.get("path") == "checkpoint_000005"][-1:]
    assert last["status"] == "VALIDATION_TIMEOUT"


def test_a_report_overrides_the_trainers_keywords_one_by_one() -> None:
    def validate(checkpoint: train.Checkpoint, a: Any = 0, b: Any = 0, c: Any = 0) -> dict[str, Any]:
        return {"a": a, "b": list(b), "c": c, "tuple": isinstance(b, tuple), "env": os.environ.get("OF_VALIDATION")}

    def train_func() -> None:
        report(0)
        report(1, train.ValidationTaskConfig({"b": (1, 2)}))

    given = {"runtime_env": {"env_vars": {"OF_VALIDATION": "yes"}}, "num_cpus": 1}
    defaults = train.ValidationTaskConfig({"a": 1, "b": [0]}, timeout_s=30)
    config = train.ValidationConfig(validate, defaults, ray_remote_kwargs=given)
    result = train.DataParallelTrainer(train_func, validation_config=config).fit()
    assert [{**metrics, "step": None} for _, metrics in result.best_checkpoints] == [
        {"step": None, "a": 1, "b": [0], "c": 0, "tuple": False, "env": "yes"},
        {"step": None, "a": 1, "b": [1, 2], "c": 0, "tuple": True, "env": "yes"},
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_reported_checkpoints_are_returned_once_committed_or_validated_or_after_the_timeout(
    tmp_path: Path, num_workers: int
) -> None:
    modes = train.CheckpointConsistencyMode

    def validate(checkpoint: train.Checkpoint) -> dict[str, Any]:
        wait_for(tmp_path / "go")
        return {"accuracy": 0.5}

    def look(mode: Any, timeout_s: float | None = None) -> list[tuple[dict[str, Any], str]]:
        found = train.get_all_reported_checkpoints(mode, timeout_s)
        assert [each.checkpoint.to_dict()["step"] for each in found] == [each.metrics["step"] for each in found]
        return [(each.metrics, each.status.name) for each in found]

    def train_func() -> list[Any]:
        first = look(modes.VALIDATED)
        report(0, validation=False)
        report(1)
        looks = [first, look(modes.COMMITTED), look(modes.VALIDATED, timeout_s=0.2)]
        if num_workers:
            train.collective.barrier()
        (tmp_path / "go").touch()
        return [*looks, look(modes.VALIDATED)]

    looks = trainer(train_func, validate, num_workers).fit().return_value
    there = [({"step": 0}, "COMMITTED"), ({"step": 1}, "PENDING_VALIDATION")]
    assert looks == [[], there, there, [there[0], ({"step": 1, "accuracy": 0.5}, "VALIDATED")]]


@pytest.mark.parametrize(
    ("validate", "checkpoint", "validation", "sentence"),
    [
        (None, {"step": 0}, True, "pass validation_config to the trainer"),
        (dict, None, True, "needs a checkpoint to validate"),
        (dict, {"step": 0}, "yes", "validation must be True, False or a ValidationTaskConfig, got 'yes'"),
        (dict, {"step": 0}, None, "validation must be True, False"),
    ],
)
def test_an_invalid_validation_argument_is_refused_at_once(
    validate: Any, checkpoint: Any, validation: Any, sentence: str
) -> None:
    def train_func() -> None:
        given = train.Checkpoint.from_dict(checkpoint) if checkpoint else None
        train.report({}, given, validation=validation)

    with pytest.raises(train.TrainingFailedError) as caught:
        trainer(train_func, validate, 0, max_failures=3).fit()
    assert isinstance(caught.value.__cause__, train.ConfigError)
    assert sentence in str(caught.value.__cause__)
    assert caught.value.result.checkpoint is None


def test_a_validation_function_that_does_not_pickle_is_refused_before_anything_starts() -> None:
    import threading

    lock = threading.Lock()

    def validate(checkpoint: train.Checkpoint) -> dict[str, Any]:
        with lock:
            return {}

    with pytest.raises(train.ConfigError, match=r"'validate' cannot be sent to a separate process: .*'lock'"):
        trainer(lambda: None, validate, 0).fit()


def test_a_validation_may_start_a_trainer_itself() -> None:
    def validate(checkpoint: train.Checkpoint) -> dict[str, Any]:
        def evaluate(config: dict[str, Any]) -> None:
            train.report({"doubled": 2 * config["step"], "world": train.get_context().get_world_size()})

        inner = train.DataParallelTrainer(
            evaluate, train_loop_config=checkpoint.to_dict(), scaling_config=train.ScalingConfig(2)
        )
        return inner.fit().metrics or {}

    result = trainer(lambda: report(4), validate).fit()
    assert [metrics for _, metrics in result.best_checkpoints] == [{"step": 4, "doubled": 8, "world": 2}]


def test_a_trainer_inside_a_validation_ends_with_it(tmp_path: Path) -> None:
    def validate(checkpoint: train.Checkpoint) -> dict[str, Any]:
        def hang() -> None:
            (tmp_path / f"{os.getpid()}.pid").touch()
            time.sleep(60)

        train.DataParallelTrainer(hang, scaling_config=train.ScalingConfig(2)).fit()
        return {}

    asked = train.ValidationTaskConfig(timeout_s=14)  # two interpreters may have to start on a busy machine
    result = trainer(lambda: report(0, asked), validate).fit()
    [saved] = RunReader.at(Path(result.path)).checkpoints()
    assert saved.validation is not None
    assert saved.validation.status is Status.VALIDATION_TIMEOUT
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(pids) == 2
    wait_until(lambda: all(map(is_gone, pids)))


def test_restarts_do_not_interrupt_validations(tmp_path: Path) -> None:
    """The validation begins before the worker is killed, and ends after its replacement has started."""

    def validate(checkpoint: train.Checkpoint) -> dict[str, Any]:
        with (tmp_path / "calls").open("a") as calls:
            calls.write("x")
        wait_for(tmp_path / "again")
        return {"accuracy": 1}

    def train_func() -> None:
        if train.get_checkpoint() is None:
            report(0)
            wait_for(tmp_path / "calls")
            os.kill(os.getpid(), signal.SIGKILL)
        (tmp_path / "again").touch()

    result = trainer(train_func, validate, max_failures=1).fit()
    assert (tmp_path / "calls").read_text() == "x"
    assert [metrics["accuracy"] for _, metrics in result.best_checkpoints] == [1]


@pytest.mark.parametrize("ending", ["fails", "stops"])
def test_a_final_failure_ends_validations_and_a_stop_waits_for_them(tmp_path: Path, ending: str) -> None:
    def validate(checkpoint: train.Checkpoint) -> dict[str, Any]:
        (tmp_path / "pid").write_text(str(os.getpid()))
        wait_for(tmp_path / "go")
        return {"accuracy": 1}

    def train_func() -> None:
        report(0)
        wait_for(tmp_path / "pid")
        if ending == "fails":
            raise ValueError("enough")
        time.sleep(60)

    run = trainer(train_func, validate, name="run").start()
    wait_until(lambda: (tmp_path / "pid").exists())
    if ending == "fails":
        with pytest.raises(train.TrainingFailedError):
            run.result()
        assert is_gone(int((tmp_path / "pid").read_text()))
        assert [saved.awaits_validation for saved in RunReader.at(run.path).checkpoints()] == [True]
    else:
        run.stop()
        wait_until(lambda: RunReader.at(run.path).state == "VALIDATING")
        (tmp_path / "go").touch()
        [(_, metrics)] = run.result().best_checkpoints
        assert metrics == {"step": 0, "accuracy": 1}


def test_a_second_stop_ends_validations(tmp_path: Path) -> None:
    def validate(checkpoint: train.Checkpoint) -> dict[str, Any]:
        (tmp_path / "begun").touch()
        time.sleep(60)
        return {}

    run = trainer(lambda: report(0), validate, name="run").start()
    wait_until(lambda: RunReader.at(run.path).state == "VALIDATING" and (tmp_path / "begun").exists())
    run.stop()
    run.stop()
    assert run.result().state == "FINISHED"
    assert [saved.awaits_validation for saved in RunReader.at(run.path).checkpoints()] == [True]
    again = trainer(lambda: None, lambda checkpoint: {"accuracy": 1}, name="run").fit()
    assert [metrics for _, metrics in again.best_checkpoints] == [{"step": 0, "accuracy": 1}]


def test_without_a_function_pending_checkpoints_stay_and_a_warning_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train_func() -> None:
        for step in range(2):
            report(step, validation=False)

    result = trainer(train_func, None, name="run").fit()
    pending = Path(result.path, "checkpoints/checkpoint_000000", layout.VALIDATION)
    write_validation(pending.parent, ValidationRecord())
    again = trainer(train_func, None, name="run", keep=train.CheckpointConfig(1)).fit()
    assert kept(again) == [0, 1]
    assert Path(pending).exists()
    assert "checkpoint_000000 awaits its validation and is kept: this trainer has no validation_config" in (
        capfd.readouterr().err
    )


SLOW = """
    import os, pathlib, subprocess, sys, time
    from headway import train

    here = pathlib.Path(__file__).parent

    def validate(checkpoint, split):
        if not (here / "again").exists():
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            (here / "pids").write_text(f"{os.getpid()} {child.pid}")
            time.sleep(600)
        return {"accuracy": checkpoint.to_dict()["step"] + 0.5, "split": split, "argv": sys.argv, "cwd": os.getcwd()}

    def train_func():
        if train.get_checkpoint() is None:
            train.report(
                {"step": 0},
                train.Checkpoint.from_dict({"step": 0}),
                validation=train.ValidationTaskConfig({"split": "test"}),
            )
        while train.get_context().get_world_size() == 1 and not (here / "again").exists() and TRAINS:
            time.sleep(0.01)

    result = train.DataParallelTrainer(
        train_func,
        run_config=train.RunConfig(name="run"),
        validation_config=train.ValidationConfig(validate, max_concurrent=1),
    ).fit()
    print(result.best_checkpoints[0][1], flush=True)
"""


def begun(folder: Path) -> list[psutil.Process]:
    wait_until(lambda: (folder / "pids").exists() and " " in (folder / "pids").read_text())
    found = []
    for pid in (folder / "pids").read_text().split():
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(int(pid)))
    return found


def test_a_killed_driver_leaves_no_process_and_its_pending_validation_is_resumed(tmp_path: Path) -> None:
    script = write_script(tmp_path, SLOW.replace("TRAINS", "True"))
    with Driver(script, cwd=tmp_path) as driver:
        processes = [*begun(tmp_path), *driver.descendants()]
        driver.process.kill()
        driver.process.wait()
        wait_until(lambda: not alive(processes), what=lambda: str(alive(processes)))
    (tmp_path / "again").touch()
    with Driver(script, cwd=tmp_path) as driver:
        assert driver.process.wait(30) == 0, driver.output
        assert "checkpoint_000000 still awaits its validation" in driver.output
        expected = {"step": 0, "accuracy": 0.5, "split": "test", "argv": [str(script)], "cwd": str(tmp_path)}
        assert str(expected) in driver.output


def test_a_validation_unknown_to_the_killed_driver_runs_later(tmp_path: Path) -> None:
    """The driver is suspended while the worker reports; both are killed; files and request are in staging."""
    script = """
        import os, pathlib, sys, time
        from headway import train

        def train_func():
            if train.get_checkpoint() is None:
                print("training", flush=True)
                while not pathlib.Path("suspended").exists():
                    time.sleep(0.01)
                train.report({"step": 0}, train.Checkpoint.from_dict({"step": 0}), validation=True)
                pathlib.Path(train.get_context().get_trial_dir(), "saved").touch()
                time.sleep(60)

        validation = train.ValidationConfig(lambda checkpoint: {"accuracy": checkpoint.to_dict()["step"] + 0.5})
        run_config = train.RunConfig(name="run")
        print(train.DataParallelTrainer(train_func, run_config=run_config, validation_config=validation).fit())
    """
    run = Path(os.environ["HEADWAY_RESULTS"], "run")
    path = write_script(tmp_path, script)
    with Driver(path, cwd=tmp_path) as driver:
        driver.wait_for("training")
        driver.process.send_signal(signal.SIGSTOP)
        (tmp_path / "suspended").touch()
        wait_until(lambda: (run / "saved").exists())
        driver.process.kill()
        driver.process.wait()
    with Driver(path, cwd=tmp_path) as driver:
        assert driver.process.wait(60) == 0, driver.output
        assert "checkpoint_000000 was validated: accuracy=0.5" in driver.output
    assert [saved.metrics for saved in RunReader.at(run).checkpoints()] == [{"step": 0, "accuracy": 0.5}]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stop_releases_ranks_that_wait_for_validations(tmp_path: Path, num_workers: int) -> None:
    def validate(checkpoint: train.Checkpoint) -> dict[str, Any]:
        (tmp_path / "begun").touch()
        wait_for(tmp_path / "freed")
        return {"accuracy": 1}

    def train_func() -> None:
        report(0)
        try:
            (tmp_path / f"waits-{train.get_context().get_world_rank()}").touch()
            train.get_all_reported_checkpoints()
        finally:
            (tmp_path / "freed").touch()

    run = trainer(train_func, validate, num_workers).start()
    wait_until(lambda: (tmp_path / "begun").exists())
    wait_until(lambda: len(list(tmp_path.glob("waits-*"))) == max(1, num_workers))
    run.stop()
    [(_, metrics)] = run.result(60).best_checkpoints
    assert metrics == {"step": 0, "accuracy": 1}


def test_checkpoints_in_memory_are_validated_too() -> None:
    def train_func() -> None:
        for step in range(2):
            report(step)
            train.get_all_reported_checkpoints()

    validate = train.ValidationConfig(lambda checkpoint: {"accuracy": checkpoint.to_dict()["step"] + 1})
    result = train.DataParallelTrainer(
        train_func,
        run_config=train.RunConfig(checkpoint_config=train.CheckpointConfig(num_to_keep=0)),
        validation_config=validate,
    ).fit()
    best = result.get_best_checkpoint("accuracy", "max")
    assert best is not None
    assert best.to_dict() == {"step": 1}
    shutil.rmtree(Path(best.path).parents[1])


def test_tracked_state_is_validated_when_it_is_saved() -> None:
    import torch

    def validate(checkpoint: train.Checkpoint) -> dict[str, Any]:
        return {"files": len(list(Path(checkpoint.path).iterdir()))}

    def train_func() -> None:
        train.track(model=torch.nn.Linear(1, 1))
        for step in range(4):
            train.report({"step": step}, validation=True)

    result = trainer(train_func, validate, keep=train.CheckpointConfig(every_reports=2)).fit()
    metrics = [metrics for _, metrics in result.best_checkpoints]
    assert [m["step"] for m in metrics] == [1, 3]
    assert all(m["files"] for m in metrics)


def test_ctrl_c_ends_validations_at_once_and_they_stay_pending(tmp_path: Path) -> None:
    script = write_script(tmp_path, SLOW.replace("TRAINS", "False"))
    with Driver(script) as driver:
        processes = begun(tmp_path)
        driver.wait_for("training has ended; waiting for 1 validation")
        driver.press_ctrl_c()
        driver.process.wait(60)
        assert not alive(processes)
        assert "KeyboardInterrupt" in driver.output
    record = RunReader.at(Path(os.environ["HEADWAY_RESULTS"], "run"))
    assert record.state == "ABORTED"
    assert [saved.awaits_validation for saved in record.checkpoints()] == [True]
