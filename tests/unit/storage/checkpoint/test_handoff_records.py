"""Hand-offs: files are moved aside, then stored or moved back, and never lost."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from headway.core.errors import StorageError
from headway.core.security.signing import Key
from headway.storage.checkpoint import handoff_records
from headway.storage.checkpoint.commit import CommitRequest, commit
from headway.storage.checkpoint.handoff_records import Handoff
from headway.storage.checkpoint.merge import Given, merge
from headway.storage.checkpoint.staging import Note, Slot, read_note
from headway.storage.run import layout

KEY = Key(b"of the run")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_text("weights")
    (folder / "deep" / "b").write_text("more")
    return folder


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    return Slot(tmp_path / "run", 1, 7, 0)


def begin(slot: Slot, source: Path, *, inside: bool = False) -> Handoff:
    return handoff_records.begin(slot, source, Note(1, {"loss": 1}), KEY, inside=inside)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_hand_off_moves_the_files_and_keeps_the_empty_directory(source: Path, slot: Slot) -> None:
    handoff = begin(slot, source)
    assert os.listdir(source) == []
    assert files(handoff.aside) == {"a", "deep/b"}
    assert handoff.aside.parent == source.parent
    assert [each.names for each in handoff_records.pending(slot.run, KEY)] == [["a", "deep/b"]]


@pytest.mark.parametrize("inside", [False, True])
def test_finishing_stages_the_files_and_keeps_the_record_until_they_are_committed(
    inside: bool, source: Path, slot: Slot
) -> None:
    handoff = begin(slot, source, inside=inside)
    assert handoff_records.finish(slot.run, handoff, KEY)
    assert files(slot.folder) == {"a", "deep/b"}
    note = read_note(slot)
    assert note is not None
    assert note.is_signed(KEY, 1, 7, 0)
    assert not handoff.aside.exists()
    assert list(handoff_records.pending(slot.run, KEY)) == [handoff]
    assert handoff_records.finish(slot.run, handoff, KEY), "a second time it has no effect"
    saved = commit(slot.run, CommitRequest(number=0, seq=7, attempt=1, world_size=1, ranks=(0,), metrics={}))
    assert saved.manifest.files.keys() == {"a", "deep/b"}
    assert list(handoff_records.pending(slot.run, KEY)) == []
    assert files(source) == set()


@pytest.mark.parametrize("inside", [False, True])
def test_staged_files_that_do_not_become_a_checkpoint_are_given_back(inside: bool, source: Path, slot: Slot) -> None:
    handoff = begin(slot, source, inside=inside)
    handoff_records.finish(slot.run, handoff, KEY)
    [text] = handoff_records.give_back(slot.run, handoff)
    assert text == (
        "the files of rank 0 for report 7, which did not become a checkpoint, were moved back to " + str(source)
    )
    assert files(source) == {"a", "deep/b"}
    assert files(slot.folder) == set()
    assert list(handoff_records.pending(slot.run, KEY)) == []


def test_files_that_a_failed_commit_has_merged_are_given_back_to_their_rank(source: Path, slot: Slot) -> None:
    other = source.with_name("other")
    other.mkdir()
    (other / "c").write_text("of rank 1")
    second = replace(slot, rank=1)
    handoffs = [begin(slot, source, inside=True), begin(second, other, inside=True)]
    for handoff in handoffs:
        assert handoff_records.finish(slot.run, handoff, KEY)
    list(merge([Given.by(slot), Given.by(second)]))
    assert files(slot.folder) == {"a", "deep/b", "c"}
    for handoff in handoffs:
        list(handoff_records.give_back(slot.run, handoff))
    assert files(source) == {"a", "deep/b"}
    assert files(other) == {"c"}


def test_files_that_only_headway_needs_are_not_given_back(source: Path, slot: Slot) -> None:
    handoff = handoff_records.begin(slot, source, Note(1, {}), KEY, scratch=True)
    assert list(handoff_records.give_back(slot.run, handoff)) == []
    assert files(source) == set()
    assert not handoff.aside.exists()


def test_files_that_cannot_be_renamed_across_filesystems_are_copied_back(
    source: Path, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    handoff = begin(slot, source, inside=True)
    handoff_records.finish(slot.run, handoff, KEY)
    rename = os.rename

    def across(a: Path, b: Path) -> None:
        if Path(b).is_relative_to(source):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(a, b)

    monkeypatch.setattr(os, "rename", across)
    assert handoff_records.undo(slot.run, handoff) == source
    assert files(source) == {"a", "deep/b"}
    assert not list(layout.staging(slot.run).glob("*.taken"))


@pytest.mark.parametrize("inside", [False, True])
def test_undoing_moves_the_files_back(inside: bool, source: Path, slot: Slot) -> None:
    handoff = begin(slot, source, inside=inside)
    assert handoff_records.undo(slot.run, handoff) == source
    assert files(source) == {"a", "deep/b"}
    assert not handoff.aside.exists()
    assert list(handoff_records.pending(slot.run, KEY)) == []


def test_undoing_does_not_overwrite_newer_files(source: Path, slot: Slot) -> None:
    handoff = begin(slot, source)
    (source / "a").write_text("newer")
    where = handoff_records.undo(slot.run, handoff)
    assert where == source.with_name("mine.report-7")
    assert (source / "a").read_text() == "newer"
    assert (where / "a").read_text() == "weights"


@pytest.mark.parametrize("reason", ["incomplete", "rebooted", "missing"])
def test_a_hand_off_whose_files_are_not_certain_is_not_finished(reason: str, source: Path, slot: Slot) -> None:
    handoff = begin(slot, source)
    match reason:
        case "incomplete":
            handoff = replace(handoff, complete=False)
        case "rebooted":
            handoff = replace(handoff, boot="another")
        case _:
            shutil.rmtree(handoff.aside)
    assert not handoff_records.finish(slot.run, handoff, KEY)
    assert not slot.folder.exists()


def test_a_record_that_another_key_has_signed_is_removed_and_its_files_stay(source: Path, slot: Slot) -> None:
    handoff = begin(slot, source)
    assert list(handoff_records.pending(slot.run, Key(b"of another run"))) == []
    assert not handoff.place(slot.run).exists()
    assert files(handoff.aside) == {"a", "deep/b"}


def test_only_hand_offs_of_the_given_attempt_are_pending(source: Path, slot: Slot) -> None:
    begin(slot, source)
    assert list(handoff_records.pending(slot.run, KEY, attempt=2)) == []
    assert [each.seq for each in handoff_records.pending(slot.run, KEY, attempt=1)] == [7]


def test_an_empty_directory_is_refused_and_no_record_stays(tmp_path: Path, slot: Slot) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match="contains no files"):
        begin(slot, tmp_path / "empty")
    assert not list(layout.staging(slot.run).glob("*"))


def test_a_copy_of_the_run_leaves_the_files_to_the_original(tmp_path: Path, source: Path, slot: Slot) -> None:
    begin(slot, source)
    copied = tmp_path / "copied"
    shutil.copytree(slot.run, copied)
    [handoff] = handoff_records.pending(copied, KEY)
    assert handoff_records.finish(copied, handoff, KEY)
    assert files(handoff.slot(copied).folder) == {"a", "deep/b"}
    assert files(handoff.aside) == {"a", "deep/b"}, "the original still has them"
    assert list(handoff_records.give_back(copied, handoff)) == []
    assert files(source) == set()
    assert len(list(handoff_records.pending(slot.run, KEY))) == 1
