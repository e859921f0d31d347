"""Ranks whose files do not come together, or who do not come at all: what a person is told, and what is kept."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from headway import train
from headway.control import controller, rounds
from support import fit, save


def test_files_of_a_rank_that_fell_far_behind_are_never_merged_with_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rounds, "GIVER_WINDOW", 2)
    last = 4  # in which they are together again, as in the first
    begun, over = f"report {last - 1} lacks the files of rank 1", f"of rank 1 for report {last - 1} came too late"

    def train_func(config: dict[str, Any]) -> None:
        rank, journal = train.get_context().get_world_rank(), Path(config["journal"])
        awaited = {(0, 1): '"checkpoint"', (1, 1): begun, (0, last): over}
        for step in range(last + 1):
            while awaited.get((rank, step), "") not in journal.read_text():
                time.sleep(0.01)
            with tempfile.TemporaryDirectory() as folder:
                train.report({}, save(folder, **{f"rank-{rank}.txt": str(step)}))

    config = {"journal": str(tmp_path / "run/events.jsonl")}
    result = fit(train_func, 2, config=config, name="run", storage_path=tmp_path)
    told = capfd.readouterr().err
    for step in range(1, last):
        assert told.count(f"the checkpoint of report {step} lacks the files of rank 1 and is dropped") == 1
        assert told.count(f"files of rank 1 for report {step} came too late: its checkpoint is gone") == 1
    kept = [
        [Path(checkpoint.path, f"rank-{rank}.txt").read_text() for rank in range(2)]
        for checkpoint, _ in result.best_checkpoints
    ]
    assert kept == [["0", "0"], [str(last), str(last)]]


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

    with pytest.raises(train.TrainingFailedError, match="checkpoints of ranks 0 and 1 cross"):
        fit(train_func, 2, config={"journal": str(tmp_path / "run/events.jsonl")}, name="run", storage_path=tmp_path)
    assert "the checkpoint of report 0 is withdrawn: checkpoints of ranks 0 and 1 cross" in capfd.readouterr().err
    assert not list(tmp_path.glob("run/checkpoints/checkpoint_*")), "nobody can go on from it"


def test_who_does_not_come_up_is_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(controller, "SLOW_START_S", 0.0)
    fit(lambda: None, 2)
    assert "still waiting for ranks 0 and 1 to come up" in capfd.readouterr().err
