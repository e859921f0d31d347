"""Removal: whole runs only, and no open run, link or other directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.errors import StorageError
from headway.storage.run.opening import open_run
from headway.storage.run.removal import check_removable, foreign_entries, remove_run


def closed_run(path: Path) -> Path:
    open_run(path, "auto").close()
    return path


def test_a_closed_run_is_removed_with_all_its_files(tmp_path: Path) -> None:
    run = closed_run(tmp_path / "run")
    (run / "checkpoints" / "mine").mkdir()
    (run / "checkpoints" / "mine" / "a").touch()
    remove_run(run)
    assert list(tmp_path.iterdir()) == []


def test_an_open_run_is_not_removed(tmp_path: Path) -> None:
    opened = open_run(tmp_path / "run", "auto")
    with pytest.raises(StorageError, match="is open in process"):
        remove_run(tmp_path / "run")
    opened.close()
    assert (tmp_path / "run" / "run.json").is_file()


def test_a_link_to_a_run_is_not_removed(tmp_path: Path) -> None:
    closed_run(tmp_path / "run")
    (tmp_path / "link").symlink_to("run")
    with pytest.raises(StorageError, match="is a link and is not removed"):
        remove_run(tmp_path / "link")
    assert (tmp_path / "run" / "run.json").is_file()


def test_a_directory_that_is_no_run_or_holds_other_runs_is_not_removed(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is not a run directory"):
        remove_run(tmp_path)
    outer = closed_run(tmp_path / "outer")
    closed_run(outer / "inner")
    with pytest.raises(StorageError, match=r"it contains other runs \(inner\)"):
        check_removable(outer)


def test_a_run_deep_inside_another_is_found_and_a_copied_description_is_none(tmp_path: Path) -> None:
    outer = closed_run(tmp_path / "outer")
    (outer / "checkpoints" / "mine").mkdir()
    (outer / "checkpoints" / "mine" / "run.json").write_bytes((outer / "run.json").read_bytes())
    check_removable(outer)
    closed_run(outer / "trials" / "of today" / "inner")
    with pytest.raises(StorageError, match=r"it contains other runs \(trials/of today/inner\)"):
        remove_run(outer)


def test_links_inside_a_run_are_not_followed(tmp_path: Path) -> None:
    run = closed_run(tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (run / "link").symlink_to(tmp_path / "mine")
    remove_run(run)
    assert (tmp_path / "mine" / "file").exists()


def test_entries_that_the_run_has_not_written_are_named(tmp_path: Path) -> None:
    run = closed_run(tmp_path / "run")
    assert foreign_entries(run) == []
    (run / "plots").mkdir()
    (run / ".cache").mkdir()
    assert foreign_entries(run) == ["plots"]
