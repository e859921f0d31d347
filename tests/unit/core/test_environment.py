"""Environment variables: their meanings, defaults, and errors for wrong values."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core import environment
from headway.core.errors import ConfigError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}


def test_results_are_written_below_the_home_directory_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("HEADWAY_RESULTS")
    assert environment.results_folder() == Path("/home/someone/headway_results")
    monkeypatch.setenv("HEADWAY_RESULTS", "~/elsewhere")
    assert environment.results_folder() == Path("/home/someone/elsewhere")


@pytest.mark.parametrize("uri", ["s3://bucket/runs", "s3:/bucket/runs"])
def test_results_without_a_storage_path_are_on_this_machine(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_RESULTS", uri)
    with pytest.raises(ConfigError, match=rf"HEADWAY_RESULTS must be a directory on this machine, got '{uri}': pass"):
        environment.results_folder()


def test_a_home_directory_that_does_not_exist_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="no such home directory: set HEADWAY_RESULTS or HOME"):
        environment.expanded("~nobody-of-this-name/x", "HEADWAY_RESULTS")


def test_the_key_lies_in_the_users_settings_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_KEY_FILE")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/settings")
    assert environment.key_file() == Path("/settings/headway/key")
    monkeypatch.setenv("HEADWAY_KEY_FILE", "/secret/key")
    assert environment.key_file() == Path("/secret/key")


def test_ranks_of_torchrun_are_read_only_if_all_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert environment.outer_ranks() == environment.OuterRanks(3, 4, 1, 2, 0, "10.0.0.1", 29500)
    monkeypatch.setenv("GROUP_RANK", "1")
    outer = environment.outer_ranks()
    assert outer is not None
    assert outer.node_rank == 1
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ConfigError, match="the environment variable RANK must be a number, got 'first'"):
        environment.outer_ranks()
    monkeypatch.delenv("RANK")
    assert environment.outer_ranks() is None


@pytest.mark.parametrize(("text", "expected"), [(None, None), ("", []), ("0, 2", ["0", "2"])])
def test_visible_gpus(text: str | None, expected: list[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if text is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert environment.visible_gpus() == expected


@pytest.mark.parametrize(("value", "expected"), [("", False), ("0", False), ("1", True)])
def test_switches(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_SHARE_GPUS", value)
    monkeypatch.setenv("TRAIN_RESULT_ENABLE_DETAILED_AUTOFILLED_METRICS", value)
    assert (environment.shares_gpus(), environment.wants_detailed_metrics()) == (expected, expected)


def test_a_directory_that_was_removed_is_replaced_by_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert environment.working_directory() == "/"


def test_only_this_module_reads_the_environment() -> None:
    """Other modules may set variables for processes that they start, and copy the complete environment."""
    source = Path(environment.__file__).parents[1]
    readers = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if "environ.get(" in path.read_text() or "getenv(" in path.read_text()
    ]
    assert readers == ["core/environment.py"]
