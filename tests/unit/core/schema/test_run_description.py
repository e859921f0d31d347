"""Descriptions in ``run.json``, from this version and others."""

from __future__ import annotations

import json

import pytest

from headway.core.schema.run_description import DatasetDescription, Opening, RunDescription
from headway.core.schema.shape import ShapeError

OPENING = Opening(
    time=1.0,
    function="train_func",
    train_loop_config={"lr": 0.1},
    datasets={"train": DatasetDescription(rows=None, source="files", fingerprint="f", lanes=2, window=1)},
)


def test_a_description_survives_json() -> None:
    described = RunDescription(id="i", name="n", seed=7, created=1.5, openings=(OPENING, Opening()))
    assert RunDescription.from_json(json.loads(json.dumps(described.to_json()))) == described


def test_what_a_newer_version_has_written_is_written_back_when_the_run_is_opened_again() -> None:
    content = {"format": 1, "id": "i", "name": "n", "seed": 7, "created": 1, "openings": [{"cluster": "b"}], "tags": []}
    written = RunDescription.from_json(content).to_json()
    assert written["tags"] == []
    assert written["openings"][0]["cluster"] == "b"


def test_the_newest_opening_is_the_last_or_an_empty_one() -> None:
    described = RunDescription(id="i", name="n", seed=7, created=1.5)
    assert described.newest == Opening()
    assert RunDescription.from_json({**described.to_json(), "openings": [{}, OPENING.to_json()]}).newest == OPENING


def test_a_damaged_opening_is_named() -> None:
    content = RunDescription(id="i", name="n", seed=7, created=1.5, openings=(Opening(),)).to_json()
    content["openings"][0]["argv"] = "train.py"
    with pytest.raises(ShapeError, match=r"openings\[0\].argv must be a list"):
        RunDescription.from_json(content)
