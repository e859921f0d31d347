"""Elastic runs: the number of workers follows the capacity, and every sample is seen once."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headway import train
from headway.core.config import ScalingConfig
from headway.core.messages import CapacityEvent, WorkerExited, WorkersPreemptedEvent
from headway.engine.fork_server import Exited
from headway.engine.fork_server_client import ForkSession
from headway.engine.local import LocalEngine
from headway.train.torch import TorchTrainer
from scenarios import elastic
from support import wait_until


def set_capacity(run: train.Run, num_workers: int) -> None:
    run._execution._engine.resources.limit(num_workers)  # type: ignore[attr-defined]


def launches(run: Path) -> list[int]:
    import json

    lines = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [line["num_workers"] for line in lines if line["event"] == "launched"]


def test_three_then_one_then_three_workers_see_every_sample_once(tmp_path: Path) -> None:
    run, took = elastic.elastic_run(tmp_path, {10: 1, 60: 3}, step_s=0.01)
    assert launches(run) == [3, 1, 3]
    assert elastic.is_exact(run)
    assert len(took) == 2


def start(function: Any, num_workers: tuple[int, int], folder: Path) -> Any:
    failures = train.FailureConfig(max_failures=1)
    return train.DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers),
        run_config=train.RunConfig(name="run", storage_path=folder, failure_config=failures),
    ).start()


def lose_a_worker(run: Any) -> None:
    """Kill a worker, and reduce the capacity to one."""
    victim = next(report for report in run.reports(rank=1))
    run._execution._engine.resources._limit = 1
    os.kill(victim.metrics["pid"], signal.SIGKILL)


def test_a_run_continues_without_a_worker_that_cannot_be_replaced(tmp_path: Path) -> None:
    """A worker is killed and its capacity lost: an ordinary failure, then a smaller group."""

    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        for step in range(6):
            train.report({"pid": os.getpid(), "world": train.get_context().get_world_size()}, save_step(step, rank))
            time.sleep(0.05)

    run = start(train_func, (1, 2), tmp_path)
    lose_a_worker(run)
    assert run.result().metrics is not None
    assert launches(run.path) == [2, 1]


def save_step(step: int, rank: int) -> train.Checkpoint | None:
    return train.Checkpoint.from_dict({"step": step}) if rank == 0 else None


def test_a_run_that_saves_by_hand_resizes_after_the_next_checkpoint(tmp_path: Path) -> None:
    def train_func() -> None:
        first = train.get_checkpoint()
        begin = first.to_dict()["step"] + 1 if first else 0
        rank = train.get_context().get_world_rank()
        for step in range(begin, 12):
            time.sleep(0.2)
            checkpoint = save_step(step, rank) if step % 4 == 3 else None
            train.report({"step": step, "world": train.get_context().get_world_size()}, checkpoint)

    run = start(train_func, (1, 2), tmp_path)
    for report in run.reports():
        if report.metrics["step"] == 1 and report.metrics["world"] == 2:
            set_capacity(run, 1)
    run.result()
    assert launches(run.path) == [2, 1]
    steps = [report["step"] for report in elastic.reports(run.path) if report["world"] == 1]
    assert steps[0] == 4, "it resumed right after the checkpoint"


def test_a_run_waits_until_min_workers_fit(tmp_path: Path) -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        for step in range(5):
            train.report({"pid": os.getpid()}, save_step(step, rank))
            time.sleep(0.05)

    run = start(train_func, (2, 3), tmp_path)
    lose_a_worker(run)
    wait_until(lambda: "only 1 of 2 workers can run now" in (run.path / "events.jsonl").read_text())
    assert run.running
    set_capacity(run, 2)
    run.result(timeout_s=30)
    assert launches(run.path) == [3, 2]


def test_after_a_failed_fork_the_engine_offers_fewer_workers_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server reports the failure; the next launch is smaller, and later the engine checks again."""
    scaling = ScalingConfig((1, 3), elastic_resize_monitor_interval_s=60)
    engine = LocalEngine(scaling)
    heard: list[Any] = []
    engine.resources.request("run")
    engine.open(heard.extend)
    try:
        exits = iter([Exited(index=2, reason="could not be forked: no memory")])
        receive = ForkSession.receive
        monkeypatch.setattr(ForkSession, "receive", lambda session: next(exits, None) or receive(session))
        engine.launch(1, 3)
        engine.kill()

        def third_has_exited() -> bool:
            engine.pump(0.1)
            left = [event.rank for event in heard if isinstance(getattr(event, "message", None), WorkerExited)]
            return 2 in left  # it may have sent Ready before

        wait_until(third_has_exited)
        assert engine.resources.num_available_workers() == 2
        assert engine.resources.look_at is not None, "it looks again in a minute"
        engine.resources.look_at = time.monotonic()
        engine.pump(0)
        assert engine.resources.num_available_workers() == 3
        engine.pump(0)
        assert CapacityEvent(3) in heard
    finally:
        engine.close()


def test_another_thread_may_change_the_capacity(tmp_path: Path) -> None:
    """Like a cluster: at any time, repeatedly."""
    trainer = TorchTrainer(
        elastic.train_func,
        train_loop_config={"step_s": 0.005},
        scaling_config=ScalingConfig((1, 2)),
        run_config=train.RunConfig(name="elastic", storage_path=tmp_path),
    )
    run = trainer.start()

    def weather() -> None:
        for number in (1, 2, 1, 2, 1, 2):
            time.sleep(0.4)
            if run.running:
                set_capacity(run, number)

    thread = threading.Thread(target=weather)
    thread.start()
    run.result(timeout_s=60)
    thread.join()
    assert elastic.is_exact(run.path)


def test_a_preemption_notice_of_the_engine_uses_no_budget(tmp_path: Path) -> None:
    trainer = TorchTrainer(
        elastic.train_func,
        train_loop_config={"step_s": 0.01},
        scaling_config=ScalingConfig(2),
        run_config=train.RunConfig(name="elastic", storage_path=tmp_path),
    )
    run = trainer.start()
    for report in run.reports():
        if report.seq == 5:
            run._execution._engine.post(WorkersPreemptedEvent(1, (1,), deadline_s=20))
    run.result(timeout_s=60)
    assert launches(run.path) == [2, 2]
    assert elastic.is_exact(run.path)
