"""Run directories that earlier versions have written are read, continued and replayed.

``tests/fixtures/runs_of_format_1`` was written by ``make_runs.py`` beside it, ``tests/fixtures/runs_before_records`` by
the last version whose journal had no typed entries. They are never written again.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import headway.data
from headway import train
from headway.core.schema.journal_entries import (
    EndEntry,
    LaunchEntry,
    PartialCheckpointEntry,
    RetiredEntry,
    RetryEntry,
    ValidatedEntry,
    WithdrawnEntry,
)
from headway.core.security.signing import user_key
from headway.storage.run import failure_bundle
from headway.storage.run.failure_bundle import StoredFailure
from headway.storage.run.journal import data_stats
from headway.storage.run.reader import RunReader
from support import python

FIXTURES = Path(__file__).parents[1] / "fixtures"
FIXTURE = FIXTURES / "runs_of_format_1"
sys.path.insert(0, str(FIXTURE))
sys.path.insert(1, str(FIXTURES / "runs_before_records"))

import make_runs
import make_untyped_runs


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the old runs, opened with the key that signed them."""
    return copied(FIXTURE, tmp_path, monkeypatch)


@pytest.fixture
def untyped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same of the runs whose journal had no typed entries."""
    return copied(FIXTURES / "runs_before_records", tmp_path, monkeypatch)


def copied(fixture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "runs"
    shutil.copytree(fixture, copy)
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


def test_every_line_of_an_untyped_run_is_read_as_what_it_says(untyped: Path) -> None:
    for run in ("continued", "withdrawn"):
        record = RunReader.at(untyped / run)
        assert record.damage() == []
        assert all(not entry.unknown for entry in record.journal.lines())
    record = RunReader.at(untyped / "continued")
    kinds = [type(entry) for entry in record.journal.lines()]
    assert {RetryEntry, EndEntry, ValidatedEntry, RetiredEntry, PartialCheckpointEntry} <= set(kinds)
    assert kinds.count(LaunchEntry) == 3
    assert WithdrawnEntry in map(type, RunReader.at(untyped / "withdrawn").journal.lines())
    stats = list(data_stats(untyped / "continued").lines())
    assert len(stats) == 6
    assert stats[0].datasets["train"].operators[0].name == "from_items"
    assert [opening.function for opening in record.description.openings] == ["trains", "trains"]
    assert not any(opening.unknown for opening in record.description.openings)
    [first, second] = record.failures()
    assert failure_bundle.summary(first).cause.startswith("rank 1 raised ValueError: a failure of rank 1")
    assert not failure_bundle.summary(second).is_stall


def test_the_manifests_of_an_untyped_run_are_still_proven_by_its_key(untyped: Path) -> None:
    record = RunReader.at(untyped / "continued")
    key = user_key().for_run(record.description.id)
    for saved in record.checkpoints():
        assert saved.manifest.is_signed(key)
        assert saved.manifest.cursor.of_datasets()["train"].known[0].rows > 0
    folder = record.failures()[0]
    assert StoredFailure.read(folder).task(key, trust=False)


def test_an_untyped_run_is_shown_by_result_and_command_line(untyped: Path) -> None:
    result = train.Result.from_path(untyped / "continued")
    assert result.state == "FINISHED"
    assert result.metrics == {"loss": 0.125, "step": 7}
    assert result.metrics_dataframe is not None
    assert list(result.metrics_dataframe["step"]) == list(range(8))
    assert result.config == {"lr": 0.1, "pause_s": 3.0}
    failed = train.Result.from_path(untyped / "withdrawn")
    assert failed.error is not None
    assert "checkpoints of ranks" in str(failed.error)
    shown = {
        command: python("-m", "headway", *command.split(), untyped / "continued")
        for command in ("show", "logs", "why --all", "ckpt ls", "ckpt verify", "ckpt why")
    }
    shown["ls"] = python("-m", "headway", "ls", untyped)
    for command, done in shown.items():
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert "damaged" not in done.stdout + done.stderr, command
    assert "what differs" not in shown["show"].stdout
    assert "restarted from checkpoint_000002" in shown["why --all"].stdout
    assert "deleted: not among the 2 most recent" in shown["ckpt why"].stdout
    assert "step 7" in shown["logs"].stdout


def test_an_untyped_run_is_resumed_where_it_was(untyped: Path) -> None:
    shutil.rmtree(untyped / "continued" / "checkpoints" / "checkpoint_000007")  # as if it had been cut off before
    trainer = train.DataParallelTrainer(
        make_untyped_runs.trains,
        train_loop_config={"lr": 0.1},
        scaling_config=train.ScalingConfig(num_workers=2),
        datasets={"train": headway.data.from_items([{"x": i} for i in range(64)])},
        validation_config=train.ValidationConfig(make_untyped_runs.validate),
        run_config=train.RunConfig(name="continued", storage_path=untyped),
    )
    result = trainer.fit()
    assert result.metrics == {"loss": 0.125, "step": 7}
    assert [entry.first_seq for entry in launches(untyped / "continued")] == [0, 3, 6, 7]


def launches(run: Path) -> list[LaunchEntry]:
    return [entry for entry in RunReader.at(run).journal.lines() if isinstance(entry, LaunchEntry)]
