"""A worker that loses a vital thread reports it and exits, and the run restarts."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway import train
from headway.diagnosis import watchdog
from headway.worker import connection, session


def break_link() -> None:
    """Make its thread fail at the next message."""

    def refuse(self: Any, message: Any) -> None:
        raise MemoryError("no room for a message")

    connection.ThreadedConnection._take = refuse  # type: ignore[method-assign]


class Broken:
    """A dataset whose statistics fail."""

    def position(self) -> dict[str, Any] | None:
        return None

    def stats(self) -> dict[str, Any] | None:
        raise ZeroDivisionError


def break_heartbeat() -> None:
    session.current("test").data.add("broken", Broken())


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (break_link, "headway-link of this worker failed with MemoryError: no room for a message"),
        (break_heartbeat, "headway-heartbeat of this worker failed with ZeroDivisionError"),
    ],
)
def test_a_vital_thread_that_fails_ends_its_worker_and_the_run_restarts(
    breaks: Callable[[], None], said: str, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"

    def train_func() -> None:
        train.report({"step": 0}, train.Checkpoint.from_dict({}))
        if train.get_context().get_world_rank() == 1 and not marker.exists():
            marker.touch()
            breaks()
            time.sleep(60)
        train.collective.barrier()
        train.report({"step": 1})

    result = train.DataParallelTrainer(
        train_func,
        scaling_config=train.ScalingConfig(2),
        run_config=train.RunConfig(
            name="run",
            storage_path=tmp_path,
            failure_config=train.FailureConfig(max_failures=1, retry_exceptions=False),
        ),
    ).fit()
    assert result.state == "FINISHED"
    events = map(json.loads, (tmp_path / "run/events.jsonl").read_text().splitlines())
    [retry] = [event for event in events if event["event"] == "retry"]
    assert f"rank 1 raised WorkerThreadError: the thread {said}" in retry["cause"]


class Thing:
    pass


def test_an_object_that_blocks_inspection_does_not_block_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "BETWEEN_S", 0.2)

    class Blocks:
        def __getattribute__(self, name: str) -> Any:
            time.sleep(60)

    def train_func() -> None:
        thing = Thing()
        proxy, blocks = weakref.proxy(thing), Blocks()
        del thing
        if train.get_context().get_world_rank() == 0:
            time.sleep(2.5)
        train.collective.barrier()
        del proxy, blocks

    result = train.DataParallelTrainer(
        train_func,
        scaling_config=train.ScalingConfig(2),
        run_config=train.RunConfig(
            name="run", storage_path=tmp_path, failure_config=train.FailureConfig(stall_warn_s=0.5)
        ),
    ).fit()
    assert result.state == "FINISHED"
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    first = next(event for event in events if event["event"] == "stall")
    assert "rank 0 is asleep in train_func" in first["text"]
