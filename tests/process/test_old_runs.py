"""Run directories that earlier versions have written are read, continued and replayed.

``tests/fixtures/runs_of_format_1`` was written by ``make_runs.py`` beside it: it is never made anew.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import headway.data
from headway import train
from support import python

FIXTURE = Path(__file__).parents[1] / "fixtures" / "runs_of_format_1"
sys.path.insert(0, str(FIXTURE))

import make_runs


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the old runs, opened with the key that signed them."""
    copy = tmp_path / "runs"
    shutil.copytree(FIXTURE, copy)
    for path in copy.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    monkeypatch.setenv("HEADWAY_KEY_FILE", str(copy / "key"))
    return copy


def test_their_results_are_read(runs: Path) -> None:
    recovered = train.Result.from_path(runs / "recovered")
    assert recovered.metrics is not None
    assert recovered.metrics["step"] == 5
    assert {checkpoint.to_dict()["step"] for checkpoint, _ in recovered.best_checkpoints} == {1, 5}
    assert recovered.get_best_checkpoint("accuracy", "max") is not None
    assert recovered.metrics_dataframe is not None
    assert list(recovered.metrics_dataframe["step"]) == [0, 1, 2, 3, 4, 5]
    failed = train.Result.from_path(runs / "failed")
    assert failed.error is not None
    assert "the run fails after its second report" in str(failed.error)


def test_the_command_line_shows_them(runs: Path) -> None:
    listed = python("-m", "headway", "ls", runs)
    assert listed.returncode == 0, listed.stderr
    assert "FINISHED" in listed.stdout
    assert "FAILED" in listed.stdout
    for command in (["show"], ["ckpt", "ls"], ["ckpt", "verify"], ["logs"], ["why"]):
        shown = python("-m", "headway", *command, runs / "recovered")
        assert shown.returncode == 0, (command, shown.stdout, shown.stderr)
        assert "damaged" not in shown.stdout + shown.stderr
    assert "ValueError: a failure of rank 1" in python("-m", "headway", "why", runs / "recovered").stdout


def test_they_are_continued(runs: Path) -> None:
    shutil.rmtree(runs / "recovered" / "checkpoints" / "checkpoint_000005")  # as if it had been cut off before
    trainer = make_runs.TorchTrainer(
        make_runs.by_hand,
        train_loop_config={"lr": 0.1},
        scaling_config=train.ScalingConfig(num_workers=2),
        datasets={"train": headway.data.from_items([{"x": i} for i in range(48)])},
        validation_config=train.ValidationConfig(make_runs.validate),
        run_config=train.RunConfig(name="recovered", storage_path=runs),
    )
    result = trainer.fit()
    assert result.metrics is not None
    assert result.metrics["step"] == 5
    dataframe = result.metrics_dataframe
    assert dataframe is not None
    assert list(dataframe["step"]) == [0, 1, 2, 3, 4, 5]


def test_a_failure_of_theirs_is_replayed(runs: Path) -> None:
    replayed = python("-m", "headway", "replay", runs / "failed", "--rank", "0")
    assert "the run fails after its second report" in replayed.stdout + replayed.stderr
    assert "Traceback" in replayed.stdout + replayed.stderr
