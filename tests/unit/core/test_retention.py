"""Retention: which checkpoints are ranked, deleted and kept, and why."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from headway.core.checkpoints import SavedCheckpoint, ValidationRecord
from headway.core.config import CheckpointConfig
from headway.core.retention import best, look_up, score, surplus, value_of, why_kept
from headway.core.validation import ReportedCheckpointStatus as Status
from support import saved_as

VALIDATED = Status.VALIDATED


def numbers(items: list[SavedCheckpoint]) -> list[int]:
    return [item.manifest.number for item in items]


def test_metrics_are_found_by_nested_keys() -> None:
    metrics = {"a": {"b": 1}, "c/d": 2}
    assert (look_up(metrics, "a/b"), look_up(metrics, "c/d"), look_up(metrics, "a/x"), look_up(metrics, "x")) == (
        1,
        2,
        None,
        None,
    )


def test_nan_and_missing_are_worst_in_both_orders() -> None:
    for order in ("min", "max"):
        for metrics in ({"x": math.nan}, {}, {"x": "?"}):
            assert score(saved_as(0, **metrics), "x", order) == -math.inf
    kept = [saved_as(0, x=1.0), saved_as(1, x=math.nan), saved_as(2, x=2.0), saved_as(3)]
    assert numbers(best(kept, CheckpointConfig(2, "x", "min"))) == [2, 0]
    assert numbers(best(kept, CheckpointConfig(2, "x", "max"))) == [0, 2]


def test_ties_go_to_the_later() -> None:
    kept = [saved_as(0, x=1), saved_as(1, x=1), saved_as(2, x=1)]
    assert numbers(best(kept, CheckpointConfig(2, "x"))) == [1, 2]


def test_neither_the_best_nor_the_newest_may_be_deleted() -> None:
    kept = [saved_as(0, x=9), saved_as(1, x=1), saved_as(2, x=2), saved_as(3, x=0)]
    assert numbers(surplus(kept, CheckpointConfig(1, "x"))) == [1, 2]
    assert surplus(kept, CheckpointConfig()) == []
    assert numbers(surplus(kept, CheckpointConfig(2))) == [0, 1]
    assert surplus([], CheckpointConfig(1)) == []


def test_copied_and_renamed_checkpoints_are_kept_and_not_counted() -> None:
    kept = [saved_as(number) for number in range(4)]
    copied = replace(kept[3], path=Path("/best-so-far"))
    renamed = replace(kept[0], path=Path("/first"))
    assert numbers(surplus([renamed, *kept[1:], copied], CheckpointConfig(2))) == [1]
    assert surplus([renamed, copied], CheckpointConfig(1)) == []
    assert why_kept([renamed, *kept[1:]], CheckpointConfig(1))[renamed.path] == "its directory was copied or renamed"


def test_metrics_of_a_validation_rank_before_those_of_training() -> None:
    told = ValidationRecord(status=VALIDATED, metrics={"loss": 9, "valid": {"loss": 3}})
    saved = saved_as(0, validation=told, loss=1, step=4)
    assert [value_of(saved, key) for key in ("loss", "valid/loss", "step", "none")] == [9, 3, 4, None]
    own = replace(saved, manifest=replace(saved.manifest, values={"loss": 5.0, "epoch": 2.0}))
    assert [value_of(own, key) for key in ("loss", "epoch")] == [9, 2.0]


def test_failed_validations_keep_the_score_of_training() -> None:
    failed = ValidationRecord(status=Status.VALIDATION_FAILED, error="no")
    kept = [
        saved_as(0, validation=ValidationRecord(status=VALIDATED, metrics={"x": 1}), x=9),
        saved_as(1, validation=failed, x=5),
        saved_as(2, x=3),
    ]
    assert [saved.manifest.seq for saved in best(kept, CheckpointConfig(2, "x"))] == [2, 1]


def test_a_checkpoint_with_a_pending_validation_is_never_surplus() -> None:
    kept = [saved_as(0, x=1), saved_as(1, validation=ValidationRecord(), x=0), saved_as(2, x=5), saved_as(3, x=2)]
    config = CheckpointConfig(1, "x")
    assert [saved.manifest.seq for saved in surplus(kept, config)] == [0]
    assert why_kept(kept, config)[Path("/1")] == "its validation is pending"
