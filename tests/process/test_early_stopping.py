"""All ranks stop in the same step, decided by rank 0's metric, also after a restart."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from headway import train
from headway.storage.run.reader import RunReader
from headway.train.torch import TorchTrainer
from support import fit

LOSSES = [5.0, 4.0, 4.5, 3.9, 3.95, 4.2, 3.91, 1.0, 0.5]


def losses_until_stop(stopping: train.EarlyStopping, losses: list[float], shift: float = 0.0) -> list[float]:
    seen = []
    for loss in losses:
        if stopping.stopped:
            break
        stopping.update({"val": {"loss": loss + shift}})
        seen.append(loss)
    return seen


def test_all_ranks_stop_where_rank_0_does() -> None:
    def train_func() -> tuple[int, float | None]:
        rank = train.get_context().get_world_rank()
        stopping = train.EarlyStopping("val/loss", patience=3)
        seen = losses_until_stop(stopping, LOSSES if rank == 0 else [9.0 - loss for loss in LOSSES])
        return len(seen), stopping.best

    assert fit(train_func, 3).return_values == [(7, 3.9)] * 3


def test_other_ranks_need_no_metrics() -> None:
    def train_func() -> int:
        stopping = train.EarlyStopping("loss", patience=1)
        number = 0
        while not stopping.stopped:
            stopping.update({"loss": 1.0} if train.get_context().get_world_rank() == 0 else None)
            number += 1
        return number

    assert fit(train_func, 2).return_values == [2, 2]


def test_after_a_restart_it_stops_in_the_same_step(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> None:
        stopping = train.EarlyStopping("loss", patience=3)
        state = train.track(model=torch.nn.Linear(1, 1), stopping=stopping)
        for epoch in state.epochs(len(LOSSES)):
            if stopping.stopped:
                break
            stopping.update({"loss": LOSSES[epoch]})
            train.report({"epoch": epoch})
            mark = Path(config["folder"], f"killed-{epoch}")
            if epoch in (4, 6) and train.get_context().get_world_rank() == 1 and not mark.exists():
                train.get_checkpoint()  # is committed by now
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    result = TorchTrainer(
        train_func,
        train_loop_config={"folder": str(tmp_path)},
        scaling_config=train.ScalingConfig(2),
        run_config=train.RunConfig(
            storage_path=tmp_path,
            failure_config=train.FailureConfig(max_failures=2),
            checkpoint_config=train.CheckpointConfig(every_reports=1),
        ),
    ).fit()
    assert sorted(path.name for path in tmp_path.glob("killed-*")) == ["killed-4", "killed-6"]
    epochs = [row.metrics["epoch"] for row in RunReader.at(result.path).reports()]
    assert epochs == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("options", "losses", "expected"),
    [
        ({}, LOSSES, 7),
        ({"patience": 1}, LOSSES, 3),
        ({"min_delta": 0.5, "patience": 3}, LOSSES, 5),
        ({"mode": "max", "patience": 2}, LOSSES, 3),
        ({"patience": 2}, [math.nan, 3.0, math.nan, math.inf], 4),
        ({"patience": 2}, [math.inf, 3.0, 2.0, 1.0], 4),
        ({"patience": 2}, [1, 1, 1, 1], 3),
    ],
)
def test_stop_conditions(options: dict[str, Any], losses: list[float], expected: int) -> None:
    def train_func() -> int:
        return len(losses_until_stop(train.EarlyStopping("val/loss", **options), losses))

    assert fit(train_func, 0).return_value == expected


@pytest.mark.parametrize(
    ("metrics", "complaint"),
    [
        ({"acc": 1, "val": {"f1": 2}}, "there is no metric 'loss'; available: acc, val/f1"),
        ({"loss": "low"}, "the metric 'loss' must be a number, got 'low'"),
        (None, r"takes a dict of metrics on rank 0, got None"),
    ],
)
def test_a_metric_that_cannot_be_compared_is_named(metrics: Any, complaint: str) -> None:
    with pytest.raises(train.TrainingFailedError, match=complaint):
        fit(lambda: train.EarlyStopping("loss").update(metrics), 0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"metric": ""}, "metric must be the name of a metric, got ''"),
        ({"mode": "auto"}, "mode must be 'min' or 'max', got 'auto'"),
        ({"patience": 0}, "patience must be a positive number of updates, got 0"),
        ({"patience": 1.5}, "patience must be a positive number of updates, got 1.5"),
        ({"min_delta": -1}, "min_delta must be a number >= 0, got -1"),
        ({"min_delta": math.nan}, "min_delta must be a number >= 0, got nan"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(train.ConfigError, match=re.escape(complaint)):
        train.EarlyStopping(**{"metric": "loss", **options})


def test_the_state_is_plain_data() -> None:
    stopping = train.EarlyStopping("loss")
    stopping.load_state_dict({"best": 0.5, "num_waited": 3})
    assert stopping.stopped
    assert json.loads(json.dumps(stopping.state_dict())) == {"best": 0.5, "num_waited": 3}


def test_outside_a_training_function_the_error_says_where_it_belongs() -> None:
    with pytest.raises(train.SessionError, match=r"EarlyStopping.update\(\) was called outside a training function"):
        train.EarlyStopping("loss").update({"loss": 1})
