"""GPUs of several runs and programs: each is given to one run at a time. The GPUs are logical; none is needed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from headway import train
from headway.core.errors import ConfigError
from support import Driver, wait_until, write_script

SLEEPER = """
    import os, time
    from headway import train

    def train_func():
        print("uses", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
        time.sleep(60)

    scaling = train.ScalingConfig(2, use_gpu=True)
    train.DataParallelTrainer(train_func, scaling_config=scaling, run_config=train.RunConfig(name="sleeper")).fit()
"""


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")


def trainer(go: Path, num_workers: int | tuple[int, int] = 2, **resources: float) -> train.DataParallelTrainer:
    def train_func() -> str:
        while not go.exists():
            time.sleep(0.01)
        return os.environ["CUDA_VISIBLE_DEVICES"]

    scaling = train.ScalingConfig(num_workers, use_gpu=True, resources_per_worker=resources or None)
    return train.DataParallelTrainer(train_func, scaling_config=scaling)


def locks() -> list[str]:
    return [name for name in os.listdir(os.environ["HEADWAY_MEMORY_DIR"]) if name.startswith("headway-gpu-")]


def waits(run: train.Run) -> str:
    """The line that names what it waits for."""
    wait_until(lambda: any(event["event"] == "resources" for event in events(run)))
    return str(next(event["text"] for event in events(run) if event["event"] == "resources"))


def events(run: train.Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]


def test_two_runs_of_one_program_get_different_gpus_and_a_third_waits(tmp_path: Path) -> None:
    runs = [trainer(tmp_path / "go").start() for _ in range(3)]
    holders = "; ".join(f"{run.path.name}: GPU {gpus}" for run, gpus in zip(runs[:2], ("0, 1", "2, 3"), strict=True))
    assert waits(runs[2]) == f"waiting for 2 GPUs (2 workers × 1): 0 of 4 free ({holders})"
    assert not any(event["event"] == "launched" for event in events(runs[2]))
    (tmp_path / "go").touch()
    assert [run.result().return_value for run in runs[:2]] == ["0,1", "2,3"]
    assert runs[2].result().return_value in ("0,1", "2,3"), "those of the run that ended first"
    assert locks() == []
    assert trainer(tmp_path / "go").fit().return_value == "0,1", "they are free again"


def test_what_can_never_fit_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the run needs 5 GPUs \(5 workers × 1\), this machine has 4"):
        trainer(tmp_path / "go", 5).start()
    assert locks() == []


def test_a_refused_run_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    taken = tmp_path / "taken"
    taken.write_text("")
    with pytest.raises(ConfigError):
        train.DataParallelTrainer(
            print,
            scaling_config=train.ScalingConfig(2, use_gpu=True),
            run_config=train.RunConfig(storage_path=taken / "below"),
        ).fit()
    assert locks() == []


def test_gpus_of_another_program_are_left_to_it_until_it_ends(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    with Driver(write_script(tmp_path, SLEEPER)) as driver:
        driver.wait_for("[r1] uses 0,1")
        assert trainer(tmp_path / "go").fit().return_value == "2,3"
        waiting = trainer(tmp_path / "go", 3).start()
        assert f"2 of 4 free (process {driver.process.pid} (script.py): GPU 0, 1)" in waits(waiting)
        waiting.stop()
        assert waiting.result().state == "STOPPED"
        elastic = trainer(tmp_path / "go", (1, 4)).fit()
        assert len(elastic.return_values) == 2, "an elastic run takes what is free"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEADWAY_SHARE_GPUS", "1")
            assert trainer(tmp_path / "go").fit().return_value == "0,1"
        waiting = trainer(tmp_path / "go", 4).start()
        assert "waiting for 4 GPUs" in waits(waiting)
        driver.process.send_signal(signal.SIGKILL)
        driver.process.wait()
        assert waiting.result().return_value == "0,1,2,3"


def test_runs_that_ask_for_parts_of_a_gpu_share_once_none_is_idle(tmp_path: Path) -> None:
    runs = [trainer(tmp_path / "go", 1, GPU=0.5).start() for _ in range(5)]
    whole = trainer(tmp_path / "go", 1).start()
    assert "waiting for 1 GPU: 0 of 4 free" in waits(whole)
    (tmp_path / "go").touch()
    assert [run.result().return_value for run in runs] == ["0", "1", "2", "3", "0"]
    assert whole.result().return_value in ("0", "1", "2", "3")
    assert locks() == []
