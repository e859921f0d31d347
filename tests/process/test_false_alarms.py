"""Silence that is no stall: announced, busy, or a wait for storage, for a validation, for another rank."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec.implementations.local
import pytest

from headway import data, train
from headway.diagnosis import watchdog
from headway.worker.checkpoint import saves
from scenarios import false_alarms
from support import save

PATIENT_S = 60.0  # for something that comes sooner, on a crowded machine too
LONG_S = 3.5  # much longer than the controller below is patient


@pytest.fixture(autouse=True)
def short_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "BETWEEN_S", 0.4)


IMPATIENT = train.FailureConfig(stall_warn_s=0.7)


def stalls_of(
    train_func: Callable[[], None],
    folder: Path,
    num_workers: int = 2,
    limits: train.FailureConfig = IMPATIENT,
    **options: Any,
) -> list[str]:
    """The lines that are logged for a run that finishes."""
    result = train.DataParallelTrainer(
        train_func,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(name="run", storage_path=folder, failure_config=limits),
        **options,
    ).fit()
    lines = map(json.loads, Path(result.path, "events.jsonl").read_text().splitlines())
    return [line["text"] for line in lines if line["event"] == "stall"]


def report(**options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rank = train.get_context().get_world_rank()
        train.report({}, save(folder, **{f"{rank}.txt": ""}), **options)


def slow_validation(checkpoint: train.Checkpoint) -> dict[str, Any]:
    time.sleep(LONG_S)
    return {}


def test_for_a_validation_while_another_rank_waits_for_us(tmp_path: Path) -> None:
    def train_func() -> None:
        if train.get_context().get_world_rank() == 0:
            report(validation=True)
            assert [found.status.name for found in train.get_all_reported_checkpoints()] == ["VALIDATED"]
        else:
            train.report({})
        train.collective.barrier()

    config = train.ValidationConfig(slow_validation)
    assert stalls_of(train_func, tmp_path, validation_config=config) == []


def test_for_files_on_their_way_when_the_function_is_over(tmp_path: Path) -> None:
    def upload(checkpoint: train.Checkpoint, name: str) -> train.Checkpoint:
        time.sleep(LONG_S)
        place = tmp_path / "run/checkpoints" / name
        checkpoint.to_directory(place)
        return train.Checkpoint.from_directory(place)

    def train_func() -> None:
        mode = train.CheckpointUploadMode.ASYNC
        train.report(
            {}, save(tempfile.mkdtemp(dir=tmp_path), a=""), checkpoint_upload_mode=mode, checkpoint_upload_fn=upload
        )

    assert stalls_of(train_func, tmp_path, 1) == []


def test_for_room_to_save_while_another_rank_has_yet_to(tmp_path: Path) -> None:
    def train_func() -> None:
        slow = train.get_context().get_world_rank() == 1
        for step in range(saves.MAX_UNCOMMITTED + 2):
            if slow and step == 1:
                with train.phase("a long evaluation"):
                    time.sleep(LONG_S)
            report()

    assert stalls_of(train_func, tmp_path) == []


class SlowFiles(fsspec.implementations.local.LocalFileSystem):  # type: ignore[misc]
    """A store that is far away."""

    protocol = "slow"

    def _open(self, *args: Any, **options: Any) -> Any:
        time.sleep(LONG_S)
        return super()._open(*args, **options)


def test_for_a_checkpoint_to_be_downloaded(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/a.txt").write_text("a")

    def train_func() -> None:
        if train.get_context().get_world_rank() == 0:
            with train.Checkpoint(str(tmp_path / "there"), SlowFiles()).as_directory() as folder:
                assert Path(folder, "a.txt").read_text() == "a"
        train.collective.barrier()

    assert stalls_of(train_func, tmp_path) == []


def some_rows() -> data.Dataset:
    """How many there are is known only when they are read."""
    return data.range(400).filter(lambda row: row["id"] % 3 != 0)


def test_for_a_batch_that_another_rank_has_yet_to_make(tmp_path: Path) -> None:
    def train_func() -> None:
        slow = train.get_context().get_world_rank() == 1
        for number, _ in enumerate(train.get_dataset_shard("train").iter_batches(batch_size=4)):
            if slow and number == 3:
                with train.phase("a long evaluation"):
                    time.sleep(LONG_S)

    assert stalls_of(train_func, tmp_path, datasets={"train": some_rows()}) == []


def test_who_lets_others_wait_for_its_batches_is_named(tmp_path: Path) -> None:
    def train_func() -> None:
        slow = train.get_context().get_world_rank() == 1
        for number, _ in enumerate(train.get_dataset_shard("train").iter_batches(batch_size=4)):
            if slow and number == 3:
                threading.Event().wait(LONG_S)

    first, *_ = stalls_of(train_func, tmp_path, datasets={"train": some_rows()})
    assert "rank 1 is waiting for a lock in train_func" in first
    assert "rank 0 waits in the next batch, which all must have (called in train_func" in first


def set_when_told(told: list[bool], events: Path) -> None:
    until = time.monotonic() + PATIENT_S
    while '"stall"' not in events.read_text() and time.monotonic() < until:
        time.sleep(0.1)
    told.append(True)


def test_who_lets_others_wait_for_its_part_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    def train_func() -> None:
        report()
        if train.get_context().get_world_rank() == 1:
            told: list[bool] = []
            threading.Thread(target=set_when_told, args=(told, tmp_path / "run/events.jsonl")).start()
            while not told:
                pass
        report()
        train.get_all_reported_checkpoints()

    first, *_ = stalls_of(train_func, tmp_path)
    assert "rank 1 is busy in train_func" in first
    assert "rank 0 waits in get_all_reported_checkpoints (called in train_func" in first


@pytest.mark.parametrize("case", ["thread pool in C", "process pool", "shell", "slow first batch"])
def test_for_what_a_rank_has_started_and_others_wait(case: str, tmp_path: Path) -> None:
    false_alarms.drive(case, 0, LONG_S, tmp_path, warn_s=0.7)
    assert false_alarms.alarms(tmp_path) == []


def test_for_a_download_while_another_rank_waits(tmp_path: Path) -> None:
    def train_func() -> None:
        if train.get_context().get_world_rank() == 0:
            source, sink = os.pipe()

            def send() -> None:
                with os.fdopen(sink, "wb", buffering=0) as file:
                    for _ in range(70):
                        file.write(bytes(20_000))
                        time.sleep(LONG_S / 70)

            threading.Thread(target=send).start()
            with os.fdopen(source, "rb", buffering=0) as file:
                while file.read(10_000):
                    pass
        train.collective.barrier()

    assert stalls_of(train_func, tmp_path) == []


def test_for_a_machine_that_was_suspended() -> None:
    found = false_alarms.observe("suspended", 1, 1, suspended_s=LONG_S, warn_s=0.7)
    assert found["ended"] is True
    assert found["alarms"] == []


@pytest.mark.parametrize("times", [0, 1])
def test_a_phase_is_silence_that_was_announced_and_mentioned_when_it_lasts(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watchdog, "PHASE_S", 1.0)

    def train_func() -> None:
        train.report({})
        if train.get_context().get_world_rank() == 0:
            with train.phase("tokenise"):
                time.sleep(LONG_S)
        train.collective.barrier()
        train.report({})

    quiet = train.FailureConfig(stall_warn_s=None, stall_timeout_s=0.7)
    assert stalls_of(train_func, tmp_path, limits=IMPATIENT if times else quiet) == []
    told = capfd.readouterr().err
    assert told.count("rank 0 is still in the phase “tokenise”, for ") == times, "and then when it is twice as long"


def test_a_silence_that_ends_by_itself_is_reported_too(tmp_path: Path) -> None:
    def train_func() -> None:
        for step in range(3):
            train.report({"step": step})
            if step == 1:
                time.sleep(LONG_S)

    first, *_, last = stalls_of(train_func, tmp_path, 1)
    assert "rank 0 is asleep in train_func" in first
    assert last.startswith("rank 0 resumed after ")


def test_no_alarm_where_training_is_bursty_but_gets_on(tmp_path: Path) -> None:
    """Short steps, long ones, long ones in C, a rank that evaluates in many functions: no rank is stalled."""

    def train_func() -> None:
        import torch

        for step in range(6):
            until = time.monotonic() + (2.5 if step % 2 else 0.05)
            while time.monotonic() < until:
                big = torch.ones(1200, 1200)
                (big @ big).sum()
            train.collective.barrier()
            train.report({"step": step})

    assert stalls_of(train_func, tmp_path) == []


def test_for_a_dataset_that_is_made_whole(tmp_path: Path) -> None:
    def slow(batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(LONG_S)
        return batch

    def train_func() -> None:
        data.range(10).map_batches(slow).materialize()

    first, *_ = stalls_of(train_func, tmp_path, 1)
    assert "rank 0 is waiting for its data loader in train_func" in first
