"""SIGTERM to a worker or to the program: all ranks save in one report and exit, and nothing is lost."""

from __future__ import annotations

import json
import os
import pickle
import signal
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from headway import train
from headway.engine import fork_server_client
from headway.storage.run.reader import RunReader
from scenarios import preempt, training
from support import Driver, fit, journal, python, save, wait_until, write_script


def test_repeated_preemptions_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "AHEAD", 60)
    found = preempt.run_with_preemptions(tmp_path, {"a worker": 6, "the program": 4}, seed=1)
    assert found.trouble == []
    assert found.committed == 10
    assert (found.lost, found.skipped, found.other_attempts) == (0, 0, 0)
    assert found.comparison.equal, found.comparison


def trainer(function: Any, folder: Path, num_workers: int = 2, **limits: Any) -> train.DataParallelTrainer:
    return train.DataParallelTrainer(
        function,
        train_loop_config={"folder": str(folder)},
        scaling_config=train.ScalingConfig(num_workers),
        run_config=train.RunConfig(
            name="run", storage_path=folder / "runs", failure_config=train.FailureConfig(stall_warn_s=None, **limits)
        ),
    )


def tell_worker(folder: Path, rank: int) -> None:
    """Send SIGTERM to a worker, once its function has written its process id."""
    wait_until(lambda: (folder / f"pid-{rank}").exists())
    os.kill(int((folder / f"pid-{rank}").read_text()), signal.SIGTERM)


def leave_number(folder: str, rank: int) -> None:
    Path(folder, f"half-{rank}").write_text(str(os.getpid()))
    Path(folder, f"half-{rank}").rename(Path(folder, f"pid-{rank}"))


def first_step() -> int:
    checkpoint = train.get_checkpoint()
    return int(Path(checkpoint.path, "step").read_text()) + 1 if checkpoint else 0


def report_with_state(step: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        train.report({"step": step}, save(folder, step=str(step)))


def test_get_preemption_info_announces_a_preemption_to_all_ranks_in_one_step(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> int:
        rank, first = train.get_context().get_world_rank(), first_step()
        for step in range(first, first + 2 if first else 1000):
            time.sleep(0.01)
            told = train.get_preemption_info()
            if told is None:
                train.report({"step": step})
            else:
                assert not first, "no preemption is announced twice"
                seen = {**vars(told), "ranks": told.preempted_ranks, "step": step}
                left_ms = (told.deadline_ms or 0) - time.time() * 1000
                told_first = Path(config["folder"], f"told-{rank}")
                if not told_first.exists():  # it may continue for a step while the report is committed
                    told_first.write_text(json.dumps([seen, left_ms]))
                report_with_state(step)
            leave_number(config["folder"], rank)
        return first

    run = trainer(train_func, tmp_path, max_failures=0).start()
    tell_worker(tmp_path, 1)
    result = run.result()
    (told, left_ms), (told_1, left_ms_1) = (json.loads((tmp_path / f"told-{rank}").read_text()) for rank in (0, 1))
    assert told == told_1, "all ranks receive the same, in the same step"
    assert told["ranks"] == [1]
    assert list(told["preempted_node_to_ranks"].values()) == [[1]]
    assert 0 < min(left_ms, left_ms_1) <= max(left_ms, left_ms_1) <= 30_000
    assert result.state == "FINISHED"
    assert result.return_value > told["step"], "it resumed from the state that the loop had saved"
    [retry] = [event for event in journal(run.path) if event["event"] == "retry"]
    assert retry["why"] == "preempt"


def test_preemptions_have_a_separate_budget(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> None:
        for step in range(first_step(), 100_000):
            time.sleep(0.01)
            report_with_state(step)
            leave_number(config["folder"], train.get_context().get_world_rank())

    run = trainer(train_func, tmp_path, max_failures=-1, max_preemption_failures=0).start()
    tell_worker(tmp_path, 0)
    with pytest.raises(train.PreemptionError, match="rank 0 was preempted") as caught:
        run.result()
    error = caught.value
    assert error.preemption_info is not None
    assert error.preemption_info.preempted_ranks == [0]
    assert error.drain_timed_out is False
    assert error.result.checkpoint is not None
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.preemption_info) == (str(error), error.preemption_info)
    assert again.result.checkpoint == error.result.checkpoint


@pytest.mark.parametrize(
    "error",
    [
        train.PreemptionError("told", train.PreemptionInfo(17, {"here": [1]}), drain_timed_out=True, result="reached"),
        train.WorkerGroupError("failed", {1: ValueError("bad row")}, result="reached"),
        train.ControllerError("no room", OSError("full"), result="reached"),
        train.ControllerError(OSError("full")),
    ],
)
def test_errors_keep_all_attributes_when_pickled(error: train.TrainingFailedError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert {name: repr(value) for name, value in vars(again).items()} == {
        name: repr(value) for name, value in vars(error).items()
    }


LOOP = """
    import tempfile, time
    from headway import train

    def train_func():
        for step in range(100_000):
            time.sleep(0.02)
            if SAVES and step % 40 == 39:
                train.report({"step": step}, checkpoint=train.Checkpoint.from_dict({"step": step}))
            else:
                train.report({"step": step})
            if step == 5:
                print("ready", flush=True)

    train.DataParallelTrainer(
        train_func, scaling_config=train.ScalingConfig(2), run_config=train.RunConfig(name="run")
    ).fit()
"""


def record() -> RunReader:
    return RunReader.at(Path(os.environ["HEADWAY_RESULTS"], "run"))


def test_a_preempted_program_exits_after_the_next_checkpoint(tmp_path: Path) -> None:
    with Driver(write_script(tmp_path, LOOP.replace("SAVES", "True"))) as driver:
        driver.wait_for("[r1] ready")
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(60) == 75
    assert "PreemptionError: this program received SIGTERM; run it again to resume from" in driver.output
    assert record().state == "PREEMPTED"
    assert [saved.manifest.seq for saved in record().checkpoints()] == [39]


def test_a_preempted_program_that_used_start_exits_in_the_same_way(tmp_path: Path) -> None:
    """``start()`` runs the controller in a thread, which receives no signals."""
    watching = LOOP.replace("SAVES", "True").replace(").fit()", ").start().result()")
    with Driver(write_script(tmp_path, watching)) as driver:
        driver.wait_for("[r1] ready")
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(60) == 75
    assert record().state == "PREEMPTED"
    assert [saved.manifest.seq for saved in record().checkpoints()] == [39]


def test_a_program_exits_in_the_same_way_when_all_its_processes_receive_sigterm(tmp_path: Path) -> None:
    """As systemd and Slurm do: they signal every process of a program."""
    with Driver(write_script(tmp_path, LOOP.replace("SAVES", "True"))) as driver:
        driver.wait_for("[r1] ready")
        for process in [psutil.Process(driver.process.pid), *driver.descendants()]:
            process.send_signal(signal.SIGTERM)
        assert driver.process.wait(60) == 75
    assert record().state == "PREEMPTED"
    assert [saved.manifest.seq for saved in record().checkpoints()] == [39]


def test_map_processes_do_not_end_when_all_processes_receive_sigterm(tmp_path: Path) -> None:
    script = """
        import time
        import headway.data
        from headway import train

        def train_func():
            for step, _ in enumerate(train.get_dataset_shard("train").iter_batches(batch_size=1)):
                time.sleep(0.02)
                saved = train.Checkpoint.from_dict({"step": step}) if step % 40 == 39 else None
                train.report({"step": step}, checkpoint=saved)
                if step == 5:
                    print("ready", flush=True)

        rows = headway.data.range(100_000).map(lambda row: {"id": row["id"] + 1}, executor="process")
        train.DataParallelTrainer(train_func, run_config=train.RunConfig(name="run"), datasets={"train": rows}).fit()
    """
    with Driver(write_script(tmp_path, script)) as driver:
        driver.wait_for("ready")
        for process in [psutil.Process(driver.process.pid), *driver.descendants()]:
            process.send_signal(signal.SIGTERM)
        assert driver.process.wait(60) == 75
    assert record().state == "PREEMPTED"


def test_sigterm_during_the_start_of_a_worker_is_handled_later(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> int:
        first = first_step()
        for step in range(first, first + 2 if first else 1000):
            time.sleep(0.01)
            report_with_state(step)
        return first

    fit(lambda: None)  # the fork server runs
    server = psutil.Process(fork_server_client.fork_server_for(()).pid)
    wait_until(lambda: not server.children())
    run = trainer(train_func, tmp_path, 1, max_failures=0).start()
    until = time.monotonic() + 60
    while not (workers := server.children()):
        assert time.monotonic() < until
    os.kill(workers[0].pid, signal.SIGTERM)
    assert run.result().return_value > 0
    [retry] = [event for event in journal(run.path) if event["event"] == "retry"]
    assert retry["why"] == "preempt"


def test_every_run_of_a_program_counts_its_own_signals(tmp_path: Path) -> None:
    """A program that catches PreemptionError and starts another run survives one SIGTERM for each of them."""
    script = write_script(
        tmp_path,
        """
        import time
        from headway import train

        def train_func():
            for step in range(100_000):
                train.report({"step": step}, checkpoint=train.Checkpoint.from_dict({"step": step}))
                if step == 2:
                    print("ready", flush=True)
                time.sleep(0.02)

        for k in range(4):
            try:
                train.DataParallelTrainer(train_func, run_config=train.RunConfig(name=f"run-{k}")).fit()
            except train.PreemptionError:
                print("left", k, flush=True)
        """,
    )
    with Driver(script) as driver:
        for k in range(4):
            wait_until(lambda k=k: driver.output.count("[r0] ready") > k, 30)
            driver.process.send_signal(signal.SIGTERM)
            driver.wait_for(f"left {k}")
        assert driver.process.wait(60) == 0


def test_the_exit_code_of_a_preempted_program_keeps_hooks_and_exit_handlers(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import atexit, sys
        from headway import train
        from headway.train.launch.driver_signals import exit_as_preempted

        sys.excepthook = lambda kind, error, traceback: print("hook", kind.__name__, flush=True)
        atexit.register(print, "handler", flush=True)
        exit_as_preempted()
        exit_as_preempted()
        raise {"preempted": train.PreemptionError, "failed": train.TrainingFailedError}[sys.argv[1]]("told")
        """,
    )
    for name, hook, code in (("preempted", "PreemptionError", 75), ("failed", "TrainingFailedError", 1)):
        done = python(script, name)
        assert (done.stdout, done.stderr, done.returncode) == (f"hook {hook}\nhandler\n", "", code)


def test_a_second_sigterm_ends_the_program_at_once(tmp_path: Path) -> None:
    patient = "from headway.control.machine import transitions\ntransitions.NOTICE_S = 600.0\n"
    with Driver(write_script(tmp_path, patient + textwrap.dedent(LOOP.replace("SAVES", "False")))) as driver:
        driver.wait_for("[r1] ready")
        driver.process.send_signal(signal.SIGTERM)
        driver.wait_for("continuing until the next checkpoint, 600 s at most")
        reached = len(record().reports())
        wait_until(lambda: len(record().reports()) > reached + 3)
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(60) == 75
    assert "PreemptionError: this program received SIGTERM; run it again to resume from the beginning" in (
        driver.output
    )
    assert record().state == "PREEMPTED"
