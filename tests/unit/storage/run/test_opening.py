"""Opening of run directories: new ones, existing ones, and those of other users."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headway.core.errors import ConfigError, StorageError
from headway.core.schema.data_stats import DataStatsLine
from headway.core.schema.journal_entries import LaunchEntry
from headway.core.schema.run_description import Opening
from headway.storage.run import opening, ownership
from headway.storage.run.lock import is_open
from headway.storage.run.opening import create_run, open_run
from headway.storage.run.reader import RunReader, runs


def test_a_run_directory_is_locked_and_remembers(tmp_path: Path) -> None:
    first = open_run(tmp_path / "run", "auto")
    first.describe(Opening(function="one"))
    first.note(LaunchEntry(attempt=3, num_workers=1, first_seq=0))
    assert is_open(tmp_path / "run")
    with pytest.raises(StorageError, match="is open in process"):
        open_run(tmp_path / "run", "auto")
    first.close()
    assert not is_open(tmp_path / "run")
    again = open_run(tmp_path / "run", "auto")
    again.describe(Opening(function="two"))
    assert (again.id, again.seed, again.past_attempts, again.resumed) == (first.id, first.seed, 3, True)
    again.close()
    assert [opening.function for opening in RunReader.at(tmp_path / "run").description.openings] == ["one", "two"]


def test_unnamed_runs_never_share_a_folder(tmp_path: Path) -> None:
    opened = [create_run(tmp_path, "x") for _ in range(3)]
    for run in opened:
        run.describe(Opening())
        run.close()
    assert len({run.path for run in opened}) == 3
    assert len(runs(tmp_path).readable) == 3


def test_a_directory_that_was_cut_off_while_it_was_made_is_used(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for folder in ("logs", "checkpoints"):
        (run / folder).mkdir(parents=True)
    (run / ".lock").touch()
    (run / "run.json.new").write_text("{")
    open_run(run, "auto").close()
    assert RunReader.at(run).description.name == "run"


@pytest.mark.parametrize("entry", ["notes.txt", "logs/mine.txt", "checkpoints/mine/x"])
def test_a_directory_with_other_things_in_it_is_not(entry: str, tmp_path: Path) -> None:
    path = tmp_path / "run" / entry
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(ConfigError, match="is not a Headway run"):
        open_run(tmp_path / "run", "auto")
    assert path.exists()


def test_a_directory_that_was_made_for_the_run_stays_as_it_is(tmp_path: Path) -> None:
    real = tmp_path / "elsewhere"
    real.mkdir()
    real.chmod(0o750)
    (tmp_path / "run").symlink_to(real)
    open_run(tmp_path / "run", "auto").close()
    assert (real / "run.json").is_file()
    assert stat.S_IMODE(real.stat().st_mode) == 0o750


def test_a_run_directory_is_its_owners_alone(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", "auto")
    run.record(b"{}\n")
    run.append_data(DataStatsLine(attempt=1, rank=0, datasets={}))
    run.close()
    for path in (run.path, *(run.path / name for name in ("run.json", "events.jsonl", "metrics.jsonl", "data.jsonl"))):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


@pytest.mark.parametrize(
    "name", ["run.json", "events.jsonl", "metrics.jsonl", ".lock", "logs", "checkpoints", "failures"]
)
@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_written_through_a_link(name: str, there: bool, tmp_path: Path) -> None:
    open_run(tmp_path / "run", "auto").close()
    place, target = tmp_path / "run" / name, tmp_path / "elsewhere"
    if place.is_dir():
        place.rmdir()
        target.mkdir()
    else:
        place.unlink(missing_ok=True)
        target.write_text("precious")
    place.symlink_to(target if there else tmp_path / "nowhere")
    with pytest.raises(StorageError, match="writes only inside a run's directory"):
        open_run(tmp_path / "run", "auto")
    assert not (tmp_path / "nowhere").exists()
    assert (os.listdir(target) == []) if target.is_dir() else (target.read_text() == "precious")


def test_a_run_of_another_user_is_not_continued_unless_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_run(tmp_path / "run", "auto").close()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    for module in (ownership, opening):
        monkeypatch.setattr(module, "is_foreign", lambda path: path.name == "run")
    with pytest.raises(StorageError, match=r"belongs to .*: choose another name, or set RunConfig\(trust=True\)"):
        open_run(tmp_path / "run", "auto")
    open_run(tmp_path / "run", "auto", trust=True).close()
    tmp_path.chmod(0o1777)
    redirected = open_run(tmp_path / "run", "auto")
    redirected.close()
    assert redirected.path.name == "run-uid-12345"
    assert "belongs to" in redirected.recovered.notes[0]
    with pytest.raises(StorageError, match="belongs to"):
        open_run(tmp_path / "run", "must")


def test_a_run_that_has_lost_its_description_is_left_alone_and_says_what_helps(tmp_path: Path) -> None:
    open_run(tmp_path / "run", "auto").close()
    (tmp_path / "run/run.json").unlink()
    with pytest.raises(StorageError, match=r"contains a run without run\.json: restore .* resume_from_checkpoint"):
        open_run(tmp_path / "run", "auto")
    assert (tmp_path / "run/events.jsonl").exists()


def test_a_directory_that_another_user_makes_meanwhile_is_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user creates it between the first check and the creation; both name and time are predictable."""
    path = tmp_path / "run"
    monkeypatch.setattr(opening, "_create", lambda path: path.mkdir())
    monkeypatch.setattr(opening, "is_foreign", lambda path: path.exists())
    with pytest.raises(StorageError, match=r"belongs to .*choose another name"):
        open_run(path, "auto")
    assert not list(path.iterdir())
