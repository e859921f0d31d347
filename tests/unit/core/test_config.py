"""Properties of configs. Invalid values are tested in process/test_bad_input.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, chosen_engine, local_path
from headway.core.environment import outer_ranks
from headway.core.errors import ConfigError


def test_resources_of_a_worker() -> None:
    assert ScalingConfig(2).worker_resources == {"CPU": 1}
    assert ScalingConfig(2, use_gpu=True).worker_resources == {"GPU": 1}
    assert ScalingConfig(2, resources_per_worker={"GPU": 0.5}).num_gpus_per_worker == 0.5
    assert ScalingConfig(2, True, {"CPU": 4}).total_resources == {"CPU": 8, "GPU": 2}
    assert ScalingConfig(resources_per_worker={"CPU": 1, "tpu": 2}).additional_resources_per_worker == {"tpu": 2}


def test_numbers_of_workers() -> None:
    assert (ScalingConfig(3).min_workers, ScalingConfig(3).max_workers) == (3, 3)
    assert not ScalingConfig(3).elasticity_enabled
    elastic = ScalingConfig((1, 3))
    assert (elastic.min_workers, elastic.max_workers, elastic.elasticity_enabled) == (1, 3, True)


def test_the_chosen_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_engine(ScalingConfig(2)) == "local"
    assert chosen_engine(ScalingConfig(0)) == "inline"
    assert chosen_engine(ScalingConfig(1, engine="inline")) == "inline"
    monkeypatch.setenv("HEADWAY_ENGINE", "inline")
    assert chosen_engine(ScalingConfig(1)) == "inline"
    assert chosen_engine(ScalingConfig(1, engine="local")) == "local"


def test_storage_of_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWAY_RESULTS", str(tmp_path))
    assert RunConfig(name="a").path == tmp_path / "a"
    monkeypatch.delenv("HEADWAY_RESULTS")
    assert RunConfig().storage == Path.home() / "headway_results"
    assert RunConfig(storage_path="~/x").storage == Path.home() / "x"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("s3:/bucket/runs", "s3://bucket/runs"), ("ftp:/x", "ftp://x"), ("file:/data/runs", "file:///data/runs")],
)
def test_a_uri_with_one_slash_is_not_a_directory_on_this_machine(typed: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"storage_path '{typed}' has only one slash.*did you mean '{meant}'"):
        RunConfig(storage_path=typed)
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        local_path(typed)
    assert RunConfig(storage_path=f"./{typed}").storage == Path.cwd() / typed


def test_none_means_the_default() -> None:
    config = RunConfig(failure_config=None, checkpoint_config=None, callbacks=None)  # type: ignore[arg-type]
    assert config.failure_config == FailureConfig()
    assert config.checkpoint_config == CheckpointConfig()
    assert config.callbacks == ()


def test_an_outer_torchrun_is_recognized_only_with_all_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outer_ranks() is None
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    assert outer_ranks() is None
    monkeypatch.setenv("MASTER_ADDR", "host")
    outer = outer_ranks()
    assert outer is not None
    assert (outer.rank, outer.master_addr, outer.node_rank) == (1, "host", 0)
