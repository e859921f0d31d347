"""A crash at any step of a save: committed checkpoints stay, offered ones are complete, and damage is found."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from crashes import Tape, after_every_crash
from headway.cli import main
from headway.core.checkpoints import Manifest, SavedCheckpoint
from headway.core.environment import memory_folder
from headway.core.errors import StorageError
from headway.core.schema.data_cursor import DataCursor
from headway.observe import log_handler
from headway.storage import durable_fs, fs_ops, jsonl
from headway.storage.checkpoint import recovery
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.commit import CommitRequest, commit, discard, extend
from headway.storage.checkpoint.manifest import damage, read_manifest, write_manifest
from headway.storage.checkpoint.recovery import committed, recover
from headway.storage.checkpoint.staging import Note, Slot, is_in_checkpoint, stage
from headway.storage.fs_ops import write_json
from headway.storage.run import layout, lock, unfinished
from headway.storage.run.opening import open_run
from headway.storage.run.removal import remove_run
from headway.storage.run.run_directory import RunDirectory


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if possible, because hundreds of simulated crashes flush files thousands of times."""
    with tempfile.TemporaryDirectory(dir=memory_folder() or tmp_path) as folder:
        yield Path(folder)


FILES = {"model.pt": "weights ", "deep/er/state": "momenta ", "empty": ""}


def save(run: Path, seq: int, rank: int, attempt: int = 1, place: str = "", **cursor: Any) -> Slot:
    """Stage files whose contents contain their report and rank."""
    source = run.parent / f"source-{seq}-{rank}"
    for name, text in FILES.items():
        path = source / f"rank-{rank}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text * (seq + 1) and f"{text * 50}{seq} of {rank}")
    slot = Slot(run, attempt, seq, rank)
    stage(source, slot, Note(2, {"seq": seq}, cursor=DataCursor(**cursor), place=place))
    shutil.rmtree(source)
    return slot


def make(run: Path, seq: int, number: int | None = None) -> SavedCheckpoint:
    for rank in (0, 1):
        save(run, seq, rank)
    number = seq if number is None else number
    return commit(
        run,
        CommitRequest(number=number, seq=seq, attempt=1, world_size=2, ranks=(0, 1), metrics={"seq": seq}),
    )


def check_whole(saved: SavedCheckpoint) -> None:
    """Assert that every byte of both ranks' files belongs to this round."""
    assert list(damage(saved.path, saved.manifest, contents=True)) == []
    ranks = saved.manifest.ranks
    assert set(saved.manifest.files) == {f"rank-{rank}/{name}" for rank in ranks for name in FILES}
    for rank in ranks:
        for name, text in FILES.items():
            expected = f"{text * 50}{saved.manifest.seq} of {rank}" if text else ""
            assert (saved.path / f"rank-{rank}" / name).read_text() == expected
    assert saved.manifest.metrics == {"seq": saved.manifest.seq}


@pytest.mark.parametrize("reboots", [True, False])
def test_a_crash_at_any_step_of_a_save_loses_nothing_and_offers_nothing_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reboots: bool
) -> None:
    """Two rounds are committed and the first is retired, with a crash after every step."""
    tape = Tape(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        tape.record(patch)
        run = tmp_path / "run"
        durable_fs.make_directory(run / layout.CHECKPOINTS)
        reached = []
        for seq in range(3):
            make(run, seq)
            reached.append(len(tape.steps))
        discard(layout.checkpoint(run, 0))
    if reboots:
        monkeypatch.setattr(durable_fs, "boot_id", lambda: "another life")
    crashes, kept = 0, set()
    for done, names in after_every_crash(tape, tmp_path / "disk", reboots=reboots):
        crashes += 1
        run = tmp_path / "disk/run"
        if not (run / layout.CHECKPOINTS).is_dir():
            continue
        recovered = recover(run, crashed=True)
        assert not any("damaged" in note for note in recovered.notes), "nothing that looks whole is broken"
        found = recovered.kept
        for saved in found:
            check_whole(saved)
        kept.add(tuple(saved.manifest.seq for saved in found))
        promised = sum(step <= done for step in reached)
        newest = found[-1].manifest.seq if found else -1
        assert newest >= promised - 1, f"after {done} steps, {names} of them named, report {promised - 1} is lost"
        assert not any(layout.staging(run).glob("*")), "nothing stays in staging"
    assert crashes > (300 if reboots else 50)
    assert kept >= {(), (0,), (0, 1), (0, 1, 2), (1, 2)}, "every stage was cut off once"


def test_where_some_ranks_give_no_files_the_data_decides_whether_a_save_may_be_used(tmp_path: Path) -> None:
    """After the crash it is unknown whether rank 1 had reached the same position in its shard."""
    for name, cursor, givers, kept in [
        ("no data", {}, (0,), [3]),
        ("one of two", {"datasets": {"train": {"position": {"epoch": 1}}}}, (0,), []),
        ("both", {"datasets": {"train": {"position": {"epoch": 1}}}}, (0, 1), [3]),
    ]:
        run = tmp_path / name
        durable_fs.make_directory(run / layout.CHECKPOINTS)
        for rank in givers:
            save(run, 3, rank, **cursor)
        assert [saved.manifest.seq for saved in recover(run, crashed=True).kept] == kept, name


def test_a_crash_at_any_step_of_an_extension_leaves_the_smaller_or_the_larger(tmp_path: Path) -> None:
    tape = Tape(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        tape.record(patch)
        run = tmp_path / "run"
        durable_fs.make_directory(run / layout.CHECKPOINTS)
        save(run, 0, 0)
        what = CommitRequest(number=0, seq=0, attempt=1, world_size=2, ranks=(0,), metrics={"seq": 0})
        first = commit(run, what)
        committed_at = len(tape.steps)
        extend(first.path, save(run, 0, 1))
    seen = set()
    for done, _ in after_every_crash(tape, tmp_path / "disk"):
        if done < committed_at:
            continue
        [saved] = recover(tmp_path / "disk/run", crashed=True).kept
        check_whole(saved)
        seen.add(tuple(saved.manifest.ranks))
    assert seen == {(0,), (0, 1)}


def test_a_crash_at_any_step_of_tidying_up_and_of_recovery_itself_makes_nothing_look_whole(tmp_path: Path) -> None:
    """One round is dropped, one is complete, one is partial. The run is recovered, with a crash after every step."""
    tape = Tape(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        tape.record(patch)
        run = tmp_path / "run"
        make(run, 0)
        dropped = save(run, 1, 1)
        save(run, 1, 0)
        dropped.clear()
        for rank in (0, 1):
            save(run, 2, rank)
        save(run, 3, 1)
        recover(run, crashed=True)
    seqs: list[list[int]] = []
    for _ in after_every_crash(tape, tmp_path / "disk", reboots=False):
        run = tmp_path / "disk/run"
        if not (run / layout.CHECKPOINTS).is_dir():
            continue
        recovered = recover(run, crashed=True)
        assert not any("damaged" in note for note in recovered.notes), recovered.notes
        for saved in recovered.kept:
            check_whole(saved)
        seqs.append([saved.manifest.seq for saved in recovered.kept])
    assert seqs[-1] == [0, 2]


def test_saves_that_nobody_heard_of_are_kept(tmp_path: Path) -> None:
    """The driver is killed after both ranks have saved and before it has committed the checkpoint."""
    run = tmp_path / "run"
    make(run, 0)
    for rank in (0, 1):
        save(run, 1, rank)
    save(run, 2, 0)  # rank 1 also saves, but had not reached this report
    recovered = recover(run, crashed=True)
    assert [saved.manifest.seq for saved in recovered.kept] == [0, 1]
    for saved in recovered.kept:
        check_whole(saved)
    assert recovered.notes == ["checkpoint_000001 (report 1) was saved when the run was interrupted, and is kept"]


def test_a_save_whose_commit_failed_is_kept_although_newer_ones_were_committed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    make(run, 0)
    for rank in (0, 1):
        save(run, 1, rank)
    make(run, 2)
    recovered = recover(run, crashed=False)
    assert [saved.manifest.seq for saved in recovered.kept] == [0, 1, 2]
    for saved in recovered.kept:
        check_whole(saved)
    assert recovered.notes == ["checkpoint_000003 (report 1) was saved when the run was interrupted, and is kept"]


def test_saves_of_an_attempt_before_the_newest_checkpoint_are_obsolete(tmp_path: Path) -> None:
    run = tmp_path / "run"
    durable_fs.make_directory(run / layout.CHECKPOINTS)
    for attempt in (1, 2):
        save(run, 3, 0, attempt)
    commit(run, CommitRequest(number=0, seq=3, attempt=2, world_size=2, ranks=(0,), metrics={"seq": 3}))
    assert [saved.manifest.attempt for saved in recover(run, crashed=True).kept] == [2]


@pytest.mark.parametrize("newer", [False, True])
def test_late_files_that_the_driver_did_not_hear_of_are_added_to_their_checkpoint(tmp_path: Path, newer: bool) -> None:
    run = tmp_path / "run"
    save(run, 0, 0)
    commit(run, CommitRequest(number=0, seq=0, attempt=1, world_size=2, ranks=(0,), metrics={"seq": 0}))
    if newer:
        make(run, 1)
    save(run, 0, 1)
    recovered = recover(run, crashed=True)
    check_whole(recovered.kept[0])
    assert [saved.manifest.ranks for saved in recovered.kept] == [[0, 1]] * (1 + newer)
    assert recovered.notes == ["checkpoint_000000 (report 0) now includes the files of rank 1, which were saved later"]


def test_the_first_save_may_be_that_of_any_rank(tmp_path: Path) -> None:
    durable_fs.make_directory(tmp_path / "run" / layout.CHECKPOINTS)
    save(tmp_path / "run", 4, 1)
    [saved] = recover(tmp_path / "run", crashed=True).kept
    check_whole(saved)
    assert saved.manifest.ranks == [1]


def test_a_save_that_can_never_be_committed_is_kept_aside_and_the_run_can_be_opened(tmp_path: Path) -> None:
    """Rank 0 reports a file and rank 1 a directory of the same name."""
    run = tmp_path / "run"
    make(run, 0)
    for rank, name in enumerate(["a", "a/b"]):
        path = tmp_path / f"mine-{rank}" / name
        path.parent.mkdir(parents=True)
        path.write_text(f"of rank {rank}")
        stage(tmp_path / f"mine-{rank}", Slot(run, 1, 1, rank), Note(2, {"seq": 1}))
    recovered = recover(run, crashed=True)
    assert [saved.manifest.seq for saved in recovered.kept] == [0]
    assert "rank 0 reported a as a file and rank 1 as a directory: give each its own name" in recovered.notes[0]
    assert {path.read_text() for path in (run / layout.RESCUED).rglob("*") if path.is_file()} == {
        "of rank 0",
        "of rank 1",
    }
    assert recover(run, crashed=True).notes == []


def refuse(monkeypatch: pytest.MonkeyPatch, path: Path, error: int) -> None:
    """Let opening this file fail, as for another user or on a broken disk."""
    really = os.open

    def refused(name: Any, *args: Any, **rest: Any) -> int:
        if str(name) == str(path):
            raise OSError(error, os.strerror(error), str(name))
        return really(name, *args, **rest)

    monkeypatch.setattr(os, "open", refused)


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("what", ["note", "manifest"])
def test_a_file_that_cannot_be_read_now_is_not_taken_for_a_missing_or_damaged_one(
    what: str, error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    saved = make(run, 0)
    slots = [save(run, 1, rank) for rank in (0, 1)]
    with monkeypatch.context() as patch:
        refuse(patch, slots[1].note if what == "note" else saved.path / layout.MANIFEST, error)
        with pytest.raises(StorageError, match=rf"cannot be read: {os.strerror(error)}: .* try again"):
            recover(run, crashed=True)
    assert [each.manifest.seq for each in recover(run, crashed=True).kept] == [0, 1]


def test_an_extension_that_fails_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, late = save(tmp_path, 0, 1), save(tmp_path, 0, 0)
    what = CommitRequest(number=0, seq=0, attempt=1, world_size=2, ranks=(1,), metrics={"seq": 0})
    path = commit(tmp_path, what).path

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(durable_fs, "exchange", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                extend(Path(path), late)
    check_whole(extend(Path(path), late))
    assert not first.folder.exists()


def test_an_automatic_name_avoids_the_names_that_users_have_chosen(tmp_path: Path) -> None:
    for seq, name in enumerate(["checkpoint_000001", None]):
        save(tmp_path, seq, 0)
        what = CommitRequest(number=seq, seq=seq, attempt=1, world_size=2, ranks=(0,), metrics={"seq": seq}, name=name)
        commit(tmp_path, what)
    assert [saved.path.name for saved in committed(tmp_path)] == ["checkpoint_000001", "checkpoint_000002"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_that_vanishes_may_be_another_ranks_only_in_a_shared_directory(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file was written just before the report and disappears while rank 0 copies."""
    run, copy = tmp_path / "run", durable_fs.copy
    folders = [tmp_path / "mine", tmp_path / ("mine" if shared else "other")]
    for rank, folder in enumerate(folders):
        folder.mkdir(exist_ok=True)
        (folder / f"r{rank}").write_text("x")
    (folders[0] / "young").write_text("x")

    def vanishing(source: Path, target: Path) -> None:
        (folders[0] / "young").unlink(missing_ok=True)
        copy(source, target)

    monkeypatch.setattr(durable_fs, "copy", vanishing)
    for rank, folder in enumerate(folders):
        stage(folder, Slot(run, 1, 0, rank), Note(2, {}))
    what = CommitRequest(number=0, seq=0, attempt=1, world_size=2, ranks=(0, 1), metrics={})
    if shared:
        assert commit(run, what).manifest.files.keys() == {"r0", "r1"}
    else:
        with pytest.raises(StorageError, match="young disappeared while it was saved"):
            commit(run, what)


def test_saves_of_another_life_of_the_machine_are_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    make(run, 0)
    for rank in (0, 1):
        save(run, 1, rank)
    monkeypatch.setattr(durable_fs, "boot_id", lambda: "another life")
    assert [saved.manifest.seq for saved in recover(run, crashed=True).kept] == [0]


def test_a_rank_that_had_begun_to_save_is_missed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / layout.CHECKPOINTS).mkdir(parents=True)
    save(run, 0, 0)
    Slot(run, 1, 0, 1).part.mkdir()
    assert recover(run, crashed=True).kept == []
    save(run, 0, 0)
    assert [saved.manifest.ranks for saved in recover(run, crashed=True).kept] == [[0]]


def test_tracked_state_is_kept_only_if_every_rank_has_saved_it(tmp_path: Path) -> None:
    """Also in the first save, when no checkpoint shows which ranks save, and rank 1 has not begun to copy."""
    for ranks, kept in (((0,), []), ((0, 1), [0])):
        run = tmp_path / f"{len(ranks)}"
        (run / layout.CHECKPOINTS).mkdir(parents=True)
        for rank in ranks:
            save(run, 0, rank, place="epoch 0")
        assert [saved.manifest.seq for saved in recover(run, crashed=True).kept] == kept


def test_tracked_state_of_different_steps_is_no_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / layout.CHECKPOINTS).mkdir(parents=True)
    for rank in (0, 1):
        save(run, 0, rank, place="epoch 0")
        save(run, 1, rank, place=f"epoch {2 - rank}")
    recovered = recover(run, crashed=True)
    assert [saved.manifest.seq for saved in recovered.kept] == [0]
    assert any("report 1 was saved" in note and "rank 0's state at epoch 2" in note for note in recovered.notes)
    assert recover(run, crashed=True).notes == [], "it is said once"


def damages(folder: Path) -> list[tuple[str, str]]:
    return [
        (str(path.relative_to(folder)), how)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        for how in ("flip", "truncate", "remove", "grow")
        if path.stat().st_size or how in ("remove", "grow")
    ]


def harm(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    match how:
        case "flip":
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        case "truncate":
            path.write_bytes(data[:-1])
        case "grow":
            path.write_bytes(data + b" ")
        case "remove":
            path.unlink()


def test_every_damage_to_every_file_is_found_and_the_newest_good_one_used(tmp_path: Path) -> None:
    open_run(tmp_path / "run", "never").close()
    make(tmp_path / "run", 0)
    newest = make(tmp_path / "run", 1)
    assert main(["ckpt", "verify", str(tmp_path / "run")]) == 0
    kinds = damages(newest.path)
    assert len(kinds) > 20
    for name, how in kinds:
        run = tmp_path / "harmed"
        shutil.copytree(tmp_path / "run", run)
        folder = run / newest.path.relative_to(tmp_path / "run")
        harm(folder / name, how)
        assert main(["ckpt", "verify", str(run)]) == 1, (name, how)
        recovered = recover(run, crashed=True)
        assert [saved.manifest.seq for saved in recovered.kept] == [0], (name, how)
        if (name, how) != (layout.MANIFEST, "remove"):  # without a manifest it is not a checkpoint
            [note] = recovered.notes
            assert note.startswith("checkpoint_000001 is damaged and is not used (")
        shutil.rmtree(run)


def test_reading_what_is_large_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log_handler.install()  # as ``import headway.train`` does
    make(tmp_path / "run", 0)
    monkeypatch.setattr("headway.storage.checkpoint.recovery.LARGE", 0)
    recover(tmp_path / "run", crashed=True)
    assert "the run was interrupted; reading every byte of checkpoint_000000" in capsys.readouterr().err


def test_a_flipped_bit_after_an_orderly_end_is_found_when_asked_for(tmp_path: Path) -> None:
    saved = make(tmp_path / "run", 0)
    harm(saved.path / "rank-0/model.pt", "flip")
    assert [found.path for found in committed(tmp_path / "run")] == [saved.path], "sizes are as they were"
    assert list(damage(saved.path, saved.manifest, contents=True)) == [
        "rank-0/model.pt has changed since it was committed (its checksum differs)"
    ]


def test_a_manifest_that_names_files_elsewhere_is_damaged(tmp_path: Path) -> None:
    saved = make(tmp_path / "run", 0)
    (tmp_path / "secret").write_text("x")
    for name in ("../../../secret", "/etc/passwd"):
        files = {name: saved.manifest.files["rank-0/model.pt"]}
        write_manifest(saved.path, dataclasses.replace(saved.manifest, files=files))
        with pytest.raises(StorageError, match="a file outside its directory"):
            read_manifest(saved.path)


def test_a_link_in_the_place_of_a_file_is_damage(tmp_path: Path) -> None:
    saved = make(tmp_path / "run", 0)
    path = saved.path / "rank-0/model.pt"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert list(damage(saved.path, saved.manifest, contents=True)) == ["rank-0/model.pt is missing"]


def test_a_run_that_a_later_version_went_on_with_is_not_touched(tmp_path: Path) -> None:
    open_run(tmp_path / "run", "auto").close()
    saved = make(tmp_path / "run", 0)
    path = saved.path / layout.MANIFEST
    write_json(path, {"format": 99})
    with pytest.raises(StorageError, match="has format 99; this version reads 1: upgrade Headway"):
        open_run(tmp_path / "run", "auto")
    assert path.exists()


def test_names_with_odd_characters_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    names = ["with space", "ümläut", 'quo"te', "new\nline", "-rf", "%s", os.fsdecode(b"not-\xff-utf8")]
    for name in names:
        (source / name).write_text(name.encode("utf-8", "surrogateescape").hex())
    run = tmp_path / "run"
    stage(source, Slot(run, 1, 0, 0), Note(1, {}))
    saved = commit(run, CommitRequest(number=0, seq=0, attempt=1, world_size=1, ranks=(0,), metrics={}))
    assert sorted(saved.manifest.files) == sorted(names)
    [found] = committed(run)
    assert list(damage(found.path, found.manifest, contents=True)) == []


def test_a_full_disk_in_the_middle_of_a_save_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_text("half")
        raise OSError(28, "No space left on device")

    (tmp_path / "source").mkdir()
    (tmp_path / "source/a").write_text("x")
    monkeypatch.setattr(durable_fs, "copy", full)
    slot = Slot(tmp_path / "run", 1, 0, 0)
    with pytest.raises(StorageError, match=r"could not be saved to .*: .*No space left on device"):
        stage(tmp_path / "source", slot, Note(1, {}))
    assert not any(layout.staging(tmp_path / "run").iterdir())


def test_a_larger_checkpoint_keeps_the_metadata(tmp_path: Path) -> None:
    for rank in (0, 1):
        save(tmp_path, 0, rank)
    what = CommitRequest(number=0, seq=0, attempt=1, world_size=2, ranks=(0,), metrics={"seq": 0})
    checkpoint = Checkpoint(commit(tmp_path, what).path)
    checkpoint.set_metadata({"epoch": 3})
    larger = extend(Path(checkpoint.path), Slot(tmp_path, 1, 0, 1))
    check_whole(larger)
    assert Checkpoint(larger.path).get_metadata() == {"epoch": 3}


def test_what_was_set_aside_is_not_overwritten(tmp_path: Path) -> None:
    for content in ("first", "second"):
        saved = make(tmp_path, 0)
        (saved.path / "rank-0/model.pt").write_text(content)
        recover(tmp_path, crashed=False)
    aside = sorted((tmp_path / layout.CHECKPOINTS).glob(f"*{layout.DAMAGED}"))
    assert [(path / "rank-0/model.pt").read_text() for path in aside] == ["second", "first"]
    assert [path.name for path in aside] == ["checkpoint_000000-2.damaged", "checkpoint_000000.damaged"]


def test_a_manifest_that_no_reader_would_accept_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs_ops, "MAX_JSON_BYTES", 1000)
    with pytest.raises(StorageError, match="report fewer metrics"):
        make(tmp_path, 0)
    assert committed(tmp_path) == []


def test_the_lock_of_a_removed_run_is_not_that_of_the_run_that_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    open_run(path, "auto").close()
    take = lock._locked
    newer: list[RunDirectory] = []

    def removed_meanwhile(file: TextIO) -> bool:
        monkeypatch.setattr(lock, "_locked", take)
        remove_run(path)
        newer.append(open_run(path, "auto"))
        return take(file)

    monkeypatch.setattr(lock, "_locked", removed_meanwhile)
    with pytest.raises(StorageError, match="is open in process"):
        open_run(path, "auto")
    newer[0].close()

    def removed(file: TextIO) -> bool:
        monkeypatch.setattr(lock, "_locked", take)
        remove_run(path)
        return take(file)

    monkeypatch.setattr(lock, "_locked", removed)
    open_run(path, "auto").close()
    assert path.is_dir()


def test_a_removal_that_is_cut_off_anywhere_is_finished_by_the_next_run_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    for number in range(100):
        steps = iter(range(number))
        make(tmp_path / "run", 0)
        open_run(tmp_path / "run2", "auto").close()
        (tmp_path / "run/checkpoints").rename(tmp_path / "run2/old")

        def counted(do: Callable[..., None], steps: Iterator[int] = steps) -> Callable[..., None]:
            def step(*args: Any, **rest: Any) -> None:
                if next(steps, None) is None:
                    raise Killed
                do(*args, **rest)

            return step

        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            for name in ("unlink", "rmdir"):
                patch.setattr(os, name, counted(getattr(os, name)))
            remove_run(tmp_path / "run2")
            number = -1
        for left in tmp_path.glob(f"{unfinished.PREFIX}*"):
            os.utime(left, (1, 1))
        open_run(tmp_path / "next", "auto").close()
        assert list(tmp_path.glob(f"{unfinished.PREFIX}*")) == []
        for name in ("run", "next"):
            shutil.rmtree(tmp_path / name)
        if number < 0:
            return
    raise AssertionError("it is never through")


def test_a_link_to_a_checkpoint_is_not_another_one(tmp_path: Path) -> None:
    saved = make(tmp_path, 0)
    (Path(saved.path).parent / "latest").symlink_to(saved.path.name)
    assert [each.path.name for each in committed(tmp_path)] == [saved.path.name]
    (Path(saved.path).parent / "broken").symlink_to("nothing")
    found = recover(tmp_path, crashed=True)
    assert [each.path.name for each in found.kept] == [saved.path.name]


def test_who_looks_while_the_only_checkpoint_is_replaced_finds_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, 0)
    read = recovery.read_manifest

    def replaced_meanwhile(folder: Path) -> Manifest:
        monkeypatch.setattr(recovery, "read_manifest", read)
        make(tmp_path, 1)
        discard(folder)
        return read(folder)

    monkeypatch.setattr(recovery, "read_manifest", replaced_meanwhile)
    assert [saved.manifest.seq for saved in committed(tmp_path)] == [1]


def test_a_link_that_is_called_like_a_cut_off_removal_is_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in (layout.LOCK, "precious"):
        (mine / name).touch()
    os.utime(mine, (1, 1))
    (tmp_path / f"{unfinished.PREFIX}x").symlink_to(mine)
    open_run(tmp_path / "run", "auto").close()
    assert len(list(mine.iterdir())) == 2


def test_a_disk_without_room_for_the_journal_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(jsonl, "open_to_append", full)
    with pytest.raises(StorageError, match=r"events.jsonl: No space left on device: free space"):
        open_run(tmp_path / "run", "auto")


def test_copies_of_checkpoints_in_stores_belong_to_all_who_read_them(tmp_path: Path) -> None:
    copied = tmp_path / f"{layout.COPIES}0" / "which" / "files-1"
    copied.mkdir(parents=True)
    saved = make(tmp_path / "run", 0)
    assert is_in_checkpoint(copied)
    assert is_in_checkpoint(saved.path / "rank-0")
    assert is_in_checkpoint(tmp_path / "run")
    assert not is_in_checkpoint(shutil.copytree(saved.path, tmp_path / "mine"))


def test_a_full_disk_names_the_file_that_finds_no_room(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OSError, match=layout.DESCRIPTION.replace(".", r"\.")):
            write_json(tmp_path / layout.DESCRIPTION, {"name": "longer than that"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
