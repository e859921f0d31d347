"""Ranks whose files arrive late or never: what is reported, and what is kept."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from headway import train
from headway.control import controller
from headway.control.machine import report_rounds
from headway.engine import fork_server_client
from headway.worker.checkpoint import saves
from support import fit, plain_trainer, save, wait_until


def test_files_of_a_rank_that_fell_far_behind_are_never_merged_with_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report_rounds, "GIVER_WINDOW", 2)
    dropped = range(1, saves.MAX_UNCOMMITTED + 3)
    num_reports = dropped.stop + 2

    def train_func(config: dict[str, Any]) -> None:
        rank, journal = train.get_context().get_world_rank(), Path(config["journal"])
        saves.THROTTLE_S = config["throttle_s"][rank]
        awaited = {(0, 1): '"checkpoint"', (1, 1): f"report {dropped[-1]} lacks the files of rank 1"}
        for step in range(num_reports):
            while awaited.get((rank, step), "") not in journal.read_text():
                time.sleep(0.01)
            with tempfile.TemporaryDirectory() as folder:
                train.report({}, save(folder, **{f"rank-{rank}.txt": str(step)}))

    # Rank 0 runs ahead; rank 1 would wait longer than a test may take, but not for checkpoints that are gone.
    config = {"journal": str(tmp_path / "run/events.jsonl"), "throttle_s": (0.0, 600.0)}
    result = fit(train_func, 2, config=config, name="run", storage_path=tmp_path)
    told = capfd.readouterr().err
    for step in range(num_reports):
        times = int(step in dropped)
        assert told.count(f"the checkpoint of report {step} lacks the files of rank 1 and is dropped") == times
        assert told.count(f"files of rank 1 for report {step} came too late: its checkpoint was removed") == times
    kept = [
        [Path(checkpoint.path, f"rank-{rank}.txt").read_text() for rank in range(2)]
        for checkpoint, _ in result.best_checkpoints
    ]
    assert kept == [[str(step)] * 2 for step in range(num_reports) if step not in dropped]


def test_a_checkpoint_that_turns_out_to_cross_another_is_withdrawn(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train_func(config: dict[str, Any]) -> None:
        rank, journal = train.get_context().get_world_rank(), Path(config["journal"])
        for step in range(2):
            if step == 1:
                while '"checkpoint"' not in journal.read_text():
                    time.sleep(0.01)
            with tempfile.TemporaryDirectory() as folder:
                train.report({}, save(folder, a="a") if step == rank else None)

    with pytest.raises(train.TrainingFailedError, match="ranks 0 and 1 saved checkpoint 0 in different reports"):
        fit(train_func, 2, config={"journal": str(tmp_path / "run/events.jsonl")}, name="run", storage_path=tmp_path)
    assert "the checkpoint of report 0 is withdrawn: ranks 0 and 1 saved checkpoint 0 in" in capfd.readouterr().err
    assert not list(tmp_path.glob("run/checkpoints/checkpoint_*")), "it cannot be resumed from"


def test_ranks_that_do_not_come_up_are_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(controller, "SLOW_START_S", 0.0)
    fit(lambda: None)
    fork_server = psutil.Process(fork_server_client.fork_server_for(()).pid)
    fork_server.suspend()
    run = plain_trainer(lambda: None, 2).start()
    said: list[str] = []

    def is_said() -> bool:
        said.append(capfd.readouterr().err)
        return "still waiting for ranks 0 and 1 to start" in "".join(said)

    try:
        wait_until(is_said)
    finally:
        fork_server.resume()
    assert run.result().state == "FINISHED"
