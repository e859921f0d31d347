"""``run.json``: reading, and configs of former openings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.core.config import CheckpointConfig, ScalingConfig
from headway.core.errors import StorageError
from headway.core.schema.run_description import Opening, RunDescription
from headway.storage.fs_ops import write_json
from headway.storage.run import layout
from headway.storage.run.description import checkpoint_config, config_of, read_description

DESCRIPTION = RunDescription(id="1f", name="run", seed=7, created=1.0, openings=(Opening(function="f"),))


def test_a_description_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_json(tmp_path / layout.DESCRIPTION, DESCRIPTION.to_json())
    assert read_description(tmp_path).to_json() == DESCRIPTION.to_json()


def test_a_missing_description_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_description(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "does not describe a Headway run"),
        ({"name": "mine"}, "does not describe a Headway run"),
        ({**DESCRIPTION.to_json(), "format": 99}, "was written in format 99; this version reads"),
        ({**DESCRIPTION.to_json(), "seed": "seven"}, "is damaged: seed"),
    ],
)
def test_what_is_no_description_is_refused(content: object, message: str, tmp_path: Path) -> None:
    (tmp_path / layout.DESCRIPTION).write_text(json.dumps(content))
    with pytest.raises(StorageError, match=message):
        read_description(tmp_path)


def test_configs_of_an_opening_are_restored() -> None:
    opening = Opening(checkpoint_config={"num_to_keep": 3}, scaling_config={"num_workers": [1, 4]})
    assert checkpoint_config(Path("run"), opening) == CheckpointConfig(num_to_keep=3)
    assert config_of(Path("run"), opening, "scaling_config", ScalingConfig).num_workers == (1, 4)


@pytest.mark.parametrize("config", [{"unknown": 1}, {"num_to_keep": -3}])
def test_a_damaged_config_is_named(config: dict[str, object]) -> None:
    with pytest.raises(StorageError, match=r"run\.json is damaged: checkpoint_config: "):
        checkpoint_config(Path("run"), Opening(checkpoint_config=config))
