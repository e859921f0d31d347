"""What is run again, and from where. Pure parts of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path, PurePath

import pytest

from headway.core.errors import StorageError
from headway.core.messages import ProcessSetup, RankAssignment, RunInfo, Start
from headway.core.schema.failure_summary import FailureSummary, ReplayScene
from headway.core.schema.run_description import RunDescription
from headway.core.task import WorkerOptions
from headway.diagnosis import replay_info
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.train.replay import _on_this_machine, start_from
from support import failure_summary, saved_as

RUN = Path("/runs/a")


def opened(path: PurePath) -> Checkpoint:
    return Checkpoint(path)


def began(first_seq: int, checkpoint: str | None) -> FailureSummary:
    """The summary of an attempt that began there."""
    return failure_summary(
        attempt=2, first_seq=first_seq, checkpoint=checkpoint, kind="raised", fault="exception", cause=""
    )


THEN = began(6, "/elsewhere/checkpoints/5")


def test_it_begins_with_the_checkpoint_of_then_wherever_the_run_is_now() -> None:
    first_seq, checkpoint, remark = start_from(THEN, [saved_as(3), saved_as(5), saved_as(8)], RUN, opened)
    assert checkpoint is not None
    assert (first_seq, checkpoint.path, remark) == (6, "/5", "")


def test_without_that_checkpoint_with_the_newest_older_one() -> None:
    first_seq, checkpoint, remark = start_from(THEN, [saved_as(2), saved_as(3), saved_as(8)], RUN, opened)
    assert checkpoint is not None
    assert (first_seq, checkpoint.path) == (4, "/3")
    assert remark == "5 no longer exists: starting from the older 3"


def test_without_any_checkpoint_it_does_not_start() -> None:
    with pytest.raises(StorageError, match="started from 5, which no longer exists, and there is no older checkpoint"):
        start_from(THEN, [saved_as(8)], RUN, opened)


def test_the_first_attempt_of_all_begins_with_nothing_or_what_it_was_given(tmp_path: Path) -> None:
    assert start_from(began(0, None), [saved_as(1)], RUN, opened) == (0, None, "")
    _, given, _ = start_from(began(0, str(tmp_path)), [], RUN, opened)
    _, first, _ = start_from(began(0, "/moved/first_checkpoint"), [], RUN, opened)
    assert given is not None
    assert first is not None
    assert (given.path, first.path) == (str(tmp_path), "/runs/a/first_checkpoint")
    with pytest.raises(StorageError, match="which no longer exists"):
        start_from(began(0, str(tmp_path / "none")), [], RUN, opened)


PLACE = RankAssignment(
    rank=1, world_size=2, local_rank=1, local_world_size=2, gpus=(1,), visible_gpus=("2", "3"), num_threads=4
)
OPTIONS = WorkerOptions(global_workers=4, every_reports=5)
INFO = RunInfo(id="i", name="a", path="/runs/a", seed=7, attempt=2, num_workers=2, options=OPTIONS)


def test_a_scene_survives_json() -> None:
    looks = ProcessSetup(env={"SECRET": "x"}, cwd="/here", sys_path=("/lib",), argv=("train.py",))
    starts = [Start(rank=rank, place=replace(PLACE, rank=rank), run=INFO, setup=looks, task=b"") for rank in (0, 1)]
    text = json.dumps(replay_info.noted(starts, ["torch"], {"SECRET": "x"}).to_json())
    assert '"x"' not in text
    noted = ReplayScene.from_json(json.loads(text))
    assert replay_info.place(noted, 1) == PLACE
    description = RunDescription(id="i", name="a", seed=7, created=0.0)
    assert replay_info.run_info(noted, description, attempt=2, path="/scratch") == replace(INFO, path="/scratch")


def test_gpus_are_those_of_the_attempt_or_the_present_ones() -> None:
    assert _on_this_machine(PLACE, ["0", "1", "2", "3"]) == PLACE
    assert _on_this_machine(PLACE, ["0"]) == replace(PLACE, gpus=(0,), visible_gpus=("0",))
    assert _on_this_machine(PLACE, []) == replace(PLACE, gpus=(), visible_gpus=())
