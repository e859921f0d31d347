"""Merges: the files of several ranks in one directory, and which file wins where they differ."""

from __future__ import annotations

from pathlib import Path

from headway.core.checkpoints import FileConflict
from headway.storage.checkpoint.merge import Given, merge, shared_by
from headway.storage.checkpoint.staging import Note


def given(run: Path, rank: int, note: Note, **files: str) -> Given:
    folder = run / f"rank-{rank}"
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Given(rank, folder, note)


def copied(source: str, began: float) -> Note:
    return Note(2, {}, boot="this", source=source, began=began)


def test_files_of_all_ranks_end_up_in_the_first_directory(tmp_path: Path) -> None:
    parts = [given(tmp_path, 0, Note(2, {}), a="0"), given(tmp_path, 1, Note(2, {}), b="1", deep__c="2")]
    assert list(merge(parts)) == []
    assert {path.name for path in parts[0].folder.rglob("*") if path.is_file()} == {"a", "b", "c"}
    assert (parts[0].folder / "deep" / "c").read_text() == "2"


def test_equal_files_are_no_conflict(tmp_path: Path) -> None:
    assert list(merge([given(tmp_path, 0, Note(2, {}), a="x"), given(tmp_path, 1, Note(2, {}), a="x")])) == []


def test_of_different_files_the_lowest_ranks_is_kept(tmp_path: Path) -> None:
    parts = [given(tmp_path, rank, Note(3, {}), a=str(rank)) for rank in range(3)]
    assert list(merge(parts)) == [FileConflict("a", (0, 1, 2), "")]
    assert (parts[0].folder / "a").read_text() == "0"


def test_of_a_shared_directory_the_last_copy_is_kept(tmp_path: Path) -> None:
    parts = [
        given(tmp_path, 0, copied("/shared", 1.0), a="half"),
        given(tmp_path, 1, copied("/shared", 3.0), a="whole"),
        given(tmp_path, 2, copied("/shared", 2.0), a="most"),
    ]
    assert list(merge(parts)) == [FileConflict("a", (1, 0, 2), "/shared")]
    assert (parts[0].folder / "a").read_text() == "whole"


def test_ranks_share_a_directory_only_on_one_machine() -> None:
    here = copied("/tmp/x", 1.0)
    assert shared_by([here, copied("/tmp/x", 2.0)]) == "/tmp/x"
    assert shared_by([here, copied("/tmp/y", 2.0)]) == ""
    assert shared_by([here, Note(2, {}, boot="another", source="/tmp/x")]) == ""
    assert shared_by([Note(2, {}), Note(2, {})]) == ""
