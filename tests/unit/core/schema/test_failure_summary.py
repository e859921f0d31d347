"""Summaries of failures and stalls in ``failure.json``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headway.core.schema.failure_summary import FailureSummary, RankFailure, ReplayScene
from headway.core.schema.shape import ShapeError

SCENE = ReplayScene(
    cwd="/here",
    argv=("train.py",),
    sys_path=(),
    env_vars=(),
    preload=("torch",),
    every_reports=None,
    global_workers=None,
    validates=False,
    resources={"CPU": 1},
    places=({"rank": 0}, {"rank": 1}),
)


def summary(**fields: Any) -> FailureSummary:
    known: dict[str, Any] = {
        "time": 1.0,
        "attempt": 1,
        "num_workers": 2,
        "first_seq": 0,
        "checkpoint": None,
        "scene": SCENE,
        "kind": "raised",
        "fault": "exception",
        "rank": 1,
        "cause": "rank 1 raised ValueError",
        "failures": (RankFailure(rank=1, kind="raised", cause="…", traceback=""),),
        "reports": {"0": 3},
        "batches": {"0": 4},
        "phases": {},
        "memory": {"0": ((1.0, 1e9), (2.0, 2e9))},
        "versions": {"python": "3.11"},
    }
    return FailureSummary(**{**known, **fields})


@pytest.mark.parametrize(
    "found", [summary(), summary(failures=None, ranks=(0, 1)), summary(scene=None, first_seq=None)]
)
def test_a_summary_survives_json(found: FailureSummary) -> None:
    assert FailureSummary.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_stall_has_no_failures() -> None:
    assert not summary().is_stall
    assert summary(failures=None).is_stall


def test_a_scene_has_a_place_for_every_worker() -> None:
    content = summary(num_workers=3).to_json()
    with pytest.raises(ShapeError, match="one for each of 3 workers"):
        FailureSummary.from_json(content)
