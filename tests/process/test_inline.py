"""Inline: the same run in this process, where a debugger works."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from headway import train
from headway.storage.run.reader import RunReader
from support import Driver, journal, python, save, wait_until, write_script


def inline(function: Any, **options: Any) -> train.Result:
    scaling = train.ScalingConfig(engine="inline")
    return train.DataParallelTrainer(function, scaling_config=scaling, run_config=train.RunConfig(**options)).fit()


def test_the_function_runs_in_this_very_process_and_thread() -> None:
    seen: list[Any] = []

    def train_func() -> str:
        seen.append((os.getpid(), threading.current_thread()))
        return "here"

    assert inline(train_func).return_value == "here"
    assert seen == [(os.getpid(), threading.current_thread())]


def test_no_workers_means_inline() -> None:
    trainer = train.DataParallelTrainer(os.getpid, scaling_config=train.ScalingConfig(num_workers=0))
    assert trainer.fit().return_value == os.getpid()


def test_the_environment_chooses_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_ENGINE", "inline")
    assert train.DataParallelTrainer(os.getpid).fit().return_value == os.getpid()


def test_it_persists_like_any_other_run(tmp_path: Path) -> None:
    def train_func() -> None:
        assert train.get_context().get_world_size() == 1
        train.collective.barrier()
        assert train.collective.broadcast_from_rank_zero("x") == "x"
        for step in range(4):
            train.report({"step": step}, save(tempfile.mkdtemp(dir=tmp_path), step=str(step)))
            checkpoint = train.get_checkpoint()
            assert checkpoint is not None
            assert Path(checkpoint.path, "step").read_text() == str(step)

    result = inline(train_func, checkpoint_config=train.CheckpointConfig(2))
    assert result.metrics == {"step": 3}
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == [2, 3]
    states = [event["state"] for event in journal(Path(result.path)) if event["event"] == "state"]
    assert states == ["STARTING", "RUNNING", "STOPPING", "FINISHED"]


def test_reports_are_on_disk_at_once() -> None:
    def train_func() -> int:
        train.report({"step": 0})
        path = Path(train.get_context().get_trial_dir(), "metrics.jsonl")
        return len(path.read_text().splitlines())

    assert inline(train_func).return_value == 2


def test_failures_are_retried_and_raised_like_anywhere() -> None:
    tries: list[int] = []

    def train_func() -> None:
        tries.append(len(tries))
        raise KeyError("again")

    with pytest.raises(train.TrainingFailedError, match="failed in attempt 3: rank 0 raised KeyError") as caught:
        inline(train_func, failure_config=train.FailureConfig(2))
    assert tries == [0, 1, 2]
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_environment_is_as_before_afterwards() -> None:
    def train_func() -> str:
        os.environ["SET_INSIDE"] = "1"
        return os.environ["RANK"]

    before = dict(os.environ)
    assert inline(train_func).return_value == "0"
    assert dict(os.environ) == before


def test_two_at_once_are_refused() -> None:
    with pytest.raises(train.TrainingFailedError, match="inline runs cannot overlap"):
        inline(lambda: inline(lambda: None))


def test_a_handle_stops_it_at_its_next_report() -> None:
    began = threading.Event()

    def train_func() -> None:
        while True:
            train.report({})
            began.set()

    run = train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(0)).start()
    assert began.wait(60)
    run.stop()
    assert run.result().state == "STOPPED"


def test_breakpoint_works(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        from headway import train

        def train_func():
            secret = 6 * 7
            breakpoint()
            train.report({"secret": secret})

        trainer = train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(num_workers=0))
        print("metrics", trainer.fit().metrics)
        """,
    )
    leader, follower = pty.openpty()
    with subprocess.Popen([sys.executable, script], stdin=follower, stdout=follower, stderr=follower) as process:
        os.close(follower)
        os.write(leader, b"p 'secret is', secret\ncontinue\n")
        output = b""
        while True:
            try:
                chunk = os.read(leader, 4096)
            except OSError:
                break
            output += chunk
            if not chunk:
                break
        process.wait(30)
    os.close(leader)
    text = output.decode()
    assert "('secret is', 42)" in text, text
    assert "metrics {'secret': 42}" in text


def test_ctrl_c_aborts(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import time
        from headway import train

        def train_func():
            train.report({"step": 1})
            print("ready", flush=True)
            time.sleep(60)

        scaling = train.ScalingConfig(num_workers=0)
        train.DataParallelTrainer(train_func, scaling_config=scaling, run_config=train.RunConfig(name="cut")).fit()
        """,
    )
    with Driver(script) as driver:
        driver.wait_for("ready")
        driver.press_ctrl_c()
        wait_until(lambda: driver.process.poll() is not None)
        assert driver.process.returncode in (1, -signal.SIGINT)
    assert RunReader.at(Path(os.environ["HEADWAY_RESULTS"], "cut")).state == "ABORTED"


def test_under_torchrun_the_ranks_are_torchruns(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        f"""
        from headway import train
        from headway.train.torch import TorchTrainer
        import torch, torch.distributed as dist

        def train_func():
            context = train.get_context()
            total = torch.tensor([context.get_world_rank() + 1])
            dist.all_reduce(total)
            train.report({{"total": total.item(), "rank": context.get_world_rank()}})
            return context.get_world_size()

        config = train.RunConfig(name="outer", storage_path={str(tmp_path)!r})
        result = TorchTrainer(train_func, scaling_config=train.ScalingConfig(0), run_config=config).fit()
        print("seen", result.return_value, result.metrics, flush=True)
        """,
    )
    command = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port=0"]
    done = python(
        *command,
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:0",
        script,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert "seen 2 {'total': 3, 'rank': 0}" in done.stdout, done.stderr
    assert "seen 2 {'total': 3, 'rank': 1}" in done.stdout
    assert sorted(p.name for p in tmp_path.glob("outer*")) == ["outer", "outer-rank1"]
