"""Commits: the ranks' staged files become one checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.errors import StorageError
from headway.storage.checkpoint.commit import CommitRequest, commit, discard, extend
from headway.storage.checkpoint.recovery import committed, next_number
from headway.storage.checkpoint.staging import Note, Slot, stage
from headway.storage.run import layout


def staged(run: Path, rank: int, seq: int = 0, **files: str) -> None:
    source = run / f"source-{rank}-{seq}"
    source.mkdir(parents=True)
    for name, text in files.items():
        (source / name).write_text(text)
    stage(source, Slot(run, 1, seq, rank), Note(2, {}))


def commitment(*ranks: int, seq: int = 0, number: int = 0) -> CommitRequest:
    return CommitRequest(number=number, seq=seq, attempt=1, world_size=2, ranks=ranks, metrics={"loss": 1})


def test_a_commit_merges_describes_and_renames(tmp_path: Path) -> None:
    staged(tmp_path, 0, a="0", same="x")
    staged(tmp_path, 1, b="1", same="x")
    saved = commit(tmp_path, commitment(0, 1))
    assert saved.path.name == "checkpoint_000000"
    assert {name: stored.size for name, stored in saved.manifest.files.items()} == {"a": 1, "b": 1, "same": 1}
    assert saved.conflicts == ()
    assert not any(layout.staging(tmp_path).iterdir())
    assert [found.manifest for found in committed(tmp_path)] == [saved.manifest]


def test_a_commit_leaves_no_file_out_whose_name_only_begins_like_one_of_ours(tmp_path: Path) -> None:
    names = {f"{ours}{ending}" for ours in (layout.MANIFEST, layout.VALIDATION) for ending in (".bak", ".gz", ".new.1")}
    staged(tmp_path, 0, **dict.fromkeys(names, "mine"))
    saved = commit(tmp_path, commitment(0))
    assert saved.manifest.files.keys() == names
    assert {(saved.path / name).read_text() for name in names} == {"mine"}


def test_a_clash_is_told_and_the_lowest_rank_wins(tmp_path: Path) -> None:
    staged(tmp_path, 0, only="0")
    staged(tmp_path, 1, model="one")
    staged(tmp_path, 2, model="two")
    saved = commit(tmp_path, commitment(0, 1, 2))
    assert (saved.path / "model").read_text() == "one"
    assert [(clash.file, clash.ranks) for clash in saved.conflicts] == [("model", (1, 2))]


def test_of_a_folder_that_ranks_share_the_last_copy_counts(tmp_path: Path) -> None:
    """Rank 0 copies a file that rank 1 has just truncated to rewrite it. Only the later copy is surely complete."""
    source = tmp_path / "shared"
    source.mkdir()
    for rank, content in [(0, ""), (2, "half"), (1, "whole")]:
        (source / "model").write_text(content)
        stage(source, Slot(tmp_path, 1, 0, rank), Note(3, {}))
    saved = commit(tmp_path, commitment(0, 1, 2))
    assert (saved.path / "model").read_text() == "whole"
    [clash] = saved.conflicts
    assert (clash.file, clash.ranks, clash.shared) == ("model", (1, 0, 2), str(source))


@pytest.mark.parametrize(("first", "late", "kept"), [(0, 1, "of 0"), (1, 0, "of 0")])
def test_late_files_extend_a_checkpoint(tmp_path: Path, first: int, late: int, kept: str) -> None:
    staged(tmp_path, first, **{f"own-{first}": "x", "model": f"of {first}"})
    saved = commit(tmp_path, commitment(first))
    staged(tmp_path, late, **{f"own-{late}": "y", "model": f"of {late}"})
    larger = extend(saved.path, Slot(tmp_path, 1, 0, late))
    assert larger.manifest.ranks == [0, 1]
    assert set(larger.manifest.files) == {"own-0", "own-1", "model"}
    assert (saved.path / "model").read_text() == kept
    assert [found.manifest for found in committed(tmp_path)] == [larger.manifest]
    assert not any(layout.staging(tmp_path).iterdir())


def test_what_has_no_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    staged(tmp_path, 0, a="0")
    saved = commit(tmp_path, commitment(0))
    (tmp_path / "checkpoints/checkpoint_000009").mkdir()
    discard(saved.path)
    assert committed(tmp_path) == []


def test_a_checkpoint_that_is_taken_away_leaves_nothing(tmp_path: Path) -> None:
    staged(tmp_path, 0, a="0")
    saved = commit(tmp_path, commitment(0))
    discard(saved.path)
    discard(saved.path)
    assert not saved.path.exists()
    assert not any(layout.staging(tmp_path).iterdir())


def test_a_number_is_never_used_twice_whatever_lies_there(tmp_path: Path) -> None:
    (tmp_path / "checkpoints/checkpoint_000007").mkdir(parents=True)
    (tmp_path / "checkpoints/checkpoint_best").mkdir()
    assert next_number(tmp_path) == 8


def test_a_checkpoint_reported_once_more_gets_a_manifest_of_its_own(tmp_path: Path) -> None:
    staged(tmp_path / "old", 0, a="0")
    old = commit(tmp_path / "old", commitment(0))
    run = tmp_path / "new"
    stage(old.path, Slot(run, 1, 5, 0), Note(1, {}))
    assert set(commit(run, commitment(0, seq=5)).manifest.files) == {"a"}
    (old.path / layout.MANIFEST).write_text("[]")
    with pytest.raises(StorageError, match="a name that Headway reserves"):
        stage(old.path, Slot(run, 1, 6, 0), Note(1, {}))


def test_a_save_that_was_interrupted_leaves_room_for_the_next(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 1, 0, 0)
    slot.part.mkdir(parents=True)
    (slot.part / "half").write_text("x")
    staged(tmp_path, 0, whole="y")
    assert [path.name for path in slot.folder.iterdir()] == ["whole"]
