"""Many runs at once: whole gangs of GPUs in turn, none given out twice, no run starved, all interruptible."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from headway import train
from headway.control.checkpoints.committer import CheckpointCommitter
from headway.core.errors import EngineError
from headway.engine import local
from headway.engine.persistent_workers import PersistentEngine
from headway.observe.console import Console
from headway.storage.run.reader import RunReader
from headway.train.launch import fit
from headway.train.launch.control_socket import ControlSocket
from support import Driver, plain_trainer, wait_until, write_script

NUM_RUNS = 20

PROGRAM = """
    import os, sys, threading, time
    from pathlib import Path

    from headway import train

    MODE, ROOT, NUM_STEPS = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    GANGS = [(1, 1), (1, 2), (0.5, 3), (2, 1), (4, 1), (0.5, 1), (3, 1), (0.25, 4), (1, 4), (0.5, 2)]  # GPUs, workers

    def train_func(config):
        context = train.get_context()
        place, begins = context._place, time.monotonic()
        checkpoint = train.get_checkpoint()
        for step in range(checkpoint.to_dict()["step"] + 1 if checkpoint else 0, NUM_STEPS):
            time.sleep(0.05)
            save = train.Checkpoint.from_dict({"step": step}) if context.get_world_rank() == 0 else None
            train.report({"step": step}, checkpoint=save)
        gpus = ",".join(place.visible_gpus[index] for index in place.gpus)
        name = f"{config['number']}-{context.get_world_rank()}"
        (ROOT / "held" / name).write_text(f"{begins} {time.monotonic()} {config['share']} {gpus}")

    def trainer(number):
        share, num_workers = GANGS[number % len(GANGS)]
        return train.DataParallelTrainer(
            train_func,
            train_loop_config={"number": number, "share": share},
            scaling_config=train.ScalingConfig(num_workers, resources_per_worker={"GPU": share}),
            run_config=train.RunConfig(name=f"run-{number}", storage_path=ROOT),
        )

    def finish(number, result):
        try:
            said = f"ended {number} {result().state}\\n"
        except train.PreemptionError:
            said = f"ended {number} PREEMPTED\\n"
        print(said, end="", flush=True)  # one write: threads print at the same time

    (ROOT / "held").mkdir(exist_ok=True)
    if MODE == "threads":
        threads = [threading.Thread(target=lambda n=n: finish(n, trainer(n).fit)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        for number, run in enumerate([trainer(number).start() for number in range(20)]):
            finish(number, run.result)
"""


class Hold(NamedTuple):
    """When a worker had which GPUs, as it has written down itself."""

    begins: float
    ends: float
    share: float
    gpus: list[str]

    @classmethod
    def read(cls, path: Path) -> Hold:
        begins, ends, share, gpus = path.read_text().split()
        return cls(float(begins), float(ends), float(share), gpus.split(","))


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")


def most_used(holds: list[Hold], gpu: str) -> float:
    """The largest part of this GPU that was in use at one moment."""
    mine = [hold for hold in holds if gpu in hold.gpus]
    return max(
        sum(min(1, hold.share) for hold in mine if hold.begins <= moment < hold.ends)
        for moment in (hold.begins for hold in mine)
    )


def states(output: str) -> Mapping[int, str]:
    lines = [line.split() for line in output.splitlines() if line.startswith("ended ")]
    return {int(number): state for _, number, state in lines}


def check_holds(root: Path) -> None:
    holds = [Hold.read(path) for path in (root / "held").iterdir()]
    assert len(holds) == 2 * sum([1, 2, 3, 1, 1, 1, 1, 4, 4, 2]), "every worker of every run"
    assert all(len(hold.gpus) == max(1, hold.share) for hold in holds)
    for gpu in "0123":
        assert most_used(holds, gpu) <= 1, f"GPU {gpu} was given out twice"


def test_twenty_runs_of_one_program_take_turns(tmp_path: Path) -> None:
    script = write_script(tmp_path, PROGRAM)
    done = subprocess.run(
        [sys.executable, str(script), "threads", str(tmp_path), "2"], capture_output=True, text=True, timeout=180
    )
    assert states(done.stdout) == dict.fromkeys(range(NUM_RUNS), "FINISHED"), done.stdout + done.stderr
    check_holds(tmp_path)
    assert "waiting for 4 GPUs" in done.stderr


def test_sigterm_ends_running_and_waiting_runs_alike_and_all_of_them_resume(tmp_path: Path) -> None:
    script = write_script(tmp_path, PROGRAM)
    with Driver(script, args=("start", str(tmp_path), "1000")) as driver:
        wait_until(lambda: driver.output.count("waiting for ") == NUM_RUNS - 2, 60, lambda: driver.output)
        wait_until(lambda: list(tmp_path.glob("run-*/checkpoints/checkpoint_*")) != [], 60, lambda: driver.output)
        driver.process.send_signal(signal.SIGTERM)
        driver.process.wait(60)
        assert states(driver.output) == dict.fromkeys(range(NUM_RUNS), "PREEMPTED"), driver.output
    launched = [path.parent for path in tmp_path.glob("run-*/events.jsonl") if '"launched"' in path.read_text()]
    assert 0 < len(launched) < NUM_RUNS
    done = subprocess.run(
        [sys.executable, str(script), "start", str(tmp_path), "3"], capture_output=True, text=True, timeout=180
    )
    assert states(done.stdout) == dict.fromkeys(range(NUM_RUNS), "FINISHED"), done.stdout + done.stderr
    check_holds(tmp_path)


def test_a_waiting_run_shows_it_and_can_be_stopped_or_aborted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWAY_RESOURCES", json.dumps({"licence": 1}))

    def train_func() -> None:
        while not (tmp_path / "go").exists():
            train.report({})

    def trainer(name: str) -> train.DataParallelTrainer:
        scaling = train.ScalingConfig(1, resources_per_worker={"licence": 1})
        config = train.RunConfig(name=name, storage_path=tmp_path)
        return train.DataParallelTrainer(train_func, scaling_config=scaling, run_config=config)

    first, second, third = (trainer(name).start() for name in ("first", "second", "third"))
    text = "waiting for 1 'licence': 0 of 1 free (first: 1)"
    wait_until(lambda: f"{text}; 1 older request waits" in (third.path / "events.jsonl").read_text())
    assert text in (second.path / "events.jsonl").read_text()
    assert RunReader.at(second.path).state == "WAITING"
    second.stop()
    assert second.result(timeout_s=5).state == "STOPPED"
    assert plain_trainer(lambda: "at once").fit().return_value == "at once", "it asks for nothing that is limited"
    (tmp_path / "go").touch()
    assert third.result(timeout_s=30).state == first.result().state == "FINISHED"


def licensed_trainer(path: Path) -> train.DataParallelTrainer:
    """A trainer of a run that needs the only licence."""
    scaling = train.ScalingConfig(1, resources_per_worker={"licence": 1})
    config = train.RunConfig(name="run", storage_path=path)
    return train.DataParallelTrainer(lambda: "trained", scaling_config=scaling, run_config=config)


@pytest.fixture
def one_licence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_RESOURCES", json.dumps({"licence": 1}))


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (fit, "_describe", OSError("no space left")),
        (ControlSocket, "__enter__", KeyboardInterrupt()),
        (Console, "__enter__", RuntimeError("can't start new thread")),
        (CheckpointCommitter, "open", RuntimeError("can't start new thread")),
        (local, "ForkSession", OSError("too many open files")),
    ],
)
def test_a_run_that_cannot_begin_holds_nothing(
    owner: object, name: str, error: BaseException, one_licence: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*args: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises((type(error), EngineError)):
            licensed_trainer(tmp_path).fit()
    assert licensed_trainer(tmp_path).start().result(timeout_s=30).return_value == "trained"


def test_a_run_whose_thread_cannot_start_holds_nothing(
    one_licence: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            licensed_trainer(tmp_path).start()
    assert licensed_trainer(tmp_path).start().result(timeout_s=30).return_value == "trained"


def test_persistent_workers_that_cannot_start_hold_nothing(
    one_licence: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*args: object) -> None:
        raise OSError("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(local, "ForkSession", fail)
        with pytest.raises(EngineError, match="too many open files"):
            PersistentEngine(train.ScalingConfig(1, resources_per_worker={"licence": 1})).start(1, "kept", print)
    assert licensed_trainer(tmp_path).start().result(timeout_s=30).return_value == "trained"


def test_ctrl_c_ends_a_run_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = write_script(
        tmp_path,
        """
        import sys, time
        from headway import train

        def train_func(seconds=60):
            time.sleep(seconds)

        def trainer(name, num_workers):
            scaling = train.ScalingConfig(num_workers, use_gpu=True, engine=sys.argv[1])
            return train.DataParallelTrainer(
                train_func, scaling_config=scaling, run_config=train.RunConfig(name=name, storage_path=sys.argv[2])
            )

        holder = train.DataParallelTrainer(
            train_func,
            scaling_config=train.ScalingConfig(4, use_gpu=True),
            run_config=train.RunConfig(name="holder", storage_path=sys.argv[2]),
        ).start()
        try:
            trainer("waiter", 1).fit()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        holder.stop()
        print(holder.result().state, flush=True)
        """,
    )
    for engine in ("local", "inline"):
        with Driver(script, args=(engine, str(tmp_path / engine))) as driver:
            driver.wait_for("waiting for 1 GPU: 0 of 4 free (holder: GPU 0, 1, 2, 3)")
            driver.press_ctrl_c()
            driver.wait_for("interrupted")
            driver.wait_for("STOPPED")
            assert driver.process.wait(60) == 0
        assert RunReader.at(tmp_path / engine / "waiter").state == "ABORTED"
