"""Every reported file is in the checkpoint, or the save fails with the name of the missing file."""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
import socket
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest

from headway.core.errors import StorageError
from headway.core.security.signing import Key
from headway.storage import durable_fs
from headway.storage.checkpoint import handoff_records, required_files, staging
from headway.storage.checkpoint.backend import LocalCheckpointBackend
from headway.storage.checkpoint.commit import Signer
from headway.storage.checkpoint.recovery import recover
from headway.storage.checkpoint.required_files import Incomplete, Inventory, is_temporary
from headway.storage.checkpoint.staging import Note, Slot, stage
from headway.storage.run import layout
from headway.storage.run.opening import open_run
from headway.storage.run.removal import remove_run

KEY = Key(b"of the run")
ONE, TWO = Note(1, {}), Note(2, {})


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    return Slot(tmp_path / "run", 1, 3, 0)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    for name in ("a", "b", "deep/c"):
        (folder / name).write_text(f"content of {name}")
    return folder


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def when_copying(patch: pytest.MonkeyPatch, name: str, act: Callable[[], object], *, after: bool = False) -> None:
    """Call ``act`` once, before or after the file with this name is copied."""
    copy, acts = durable_fs.copy, [act]

    def copying(source: Path, target: Path) -> None:
        if source.name == name and acts and not after:
            acts.pop()()
        copy(source, target)
        if source.name == name and acts and after:
            acts.pop()()

    patch.setattr(durable_fs, "copy", copying)


@pytest.mark.parametrize("gone", ["b", "deep"])
def test_a_file_that_vanishes_fails_the_save_and_is_named(
    gone: str, source: Path, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    when_copying(monkeypatch, "a", lambda: durable_fs.remove(source / gone))
    name = re.escape(str(source / ("deep/c" if gone == "deep" else "b")))
    with pytest.raises(StorageError, match=rf"checkpoint of report 3 could not be saved .*{name} disappeared"):
        stage(source, slot, ONE)
    assert not any(layout.staging(slot.run).iterdir())


def test_a_temporary_file_may_vanish_and_one_that_is_renamed_is_found(
    source: Path, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "d.tmp").write_text("content of d")
    when_copying(
        monkeypatch, "a", lambda: [(source / "d.tmp").rename(source / "d"), (source / "b").rename(source / "e")]
    )
    stage(source, slot, ONE)
    assert files(slot.folder) == {"a", "e", "deep/c", "d"}


@pytest.mark.parametrize(
    ("name", "temporary"),
    [
        *[
            (name, True)
            for name in ("a.tmp", ".tmp-progress", "tmp_x7g2abc", "x.part", ".nfs0001", "a~", "deep/x.lock")
        ],
        *[(name, False) for name in (".metadata", "model.pt", "template.json", "part-0001", "temperature", ".hidden")],
    ],
)
def test_what_a_temporary_file_is_called(name: str, temporary: bool) -> None:
    assert is_temporary(name) == temporary


def test_a_new_file_of_another_rank_may_vanish_from_a_directory_that_ranks_share(
    source: Path, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(source / "b", (1, 1))
    (source / "of-the-other").write_text("x")
    when_copying(monkeypatch, "a", lambda: durable_fs.remove(source / "of-the-other"))
    stage(source, slot, TWO)
    when_copying(monkeypatch, "a", lambda: durable_fs.remove(source / "b"))
    with pytest.raises(StorageError, match="b disappeared"):
        stage(source, slot, TWO)


def test_a_file_that_is_written_while_it_is_copied_is_copied_again(
    source: Path, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    when_copying(monkeypatch, "a", lambda: (source / "a").write_text("another content"), after=True)
    stage(source, slot, ONE)
    assert (slot.folder / "a").read_text() == "another content"


@pytest.mark.parametrize("frozen", [False, True])
def test_a_mapped_file_that_changes_unseen_is_copied_again(
    frozen: bool, source: Path, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "a").write_bytes(b"old" * 1000)
    copy, torn = durable_fs.copy, []
    with (source / "a").open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        content[:3] = b"old"  # its modification time stays unchanged from here

        def copying(source: Path, target: Path) -> None:
            copy(source, target)
            if source.name == "a" and not torn:
                torn.append(target)
                state = source.stat()
                content[:] = b"new" * 1000
                os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))  # some filesystems update the time sooner
                target.write_bytes(b"old" * 500 + b"new" * 500)

        monkeypatch.setattr(durable_fs, "copy", copying)
        stage(source, slot, ONE, given=staging.inventory_of(source, slot, ONE) if frozen else None)
    assert torn
    assert (slot.folder / "a").read_bytes() == b"new" * 1000


def test_a_file_that_grows_is_in_it_as_far_as_it_was_reported(
    source: Path, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = durable_fs.copy

    def growing(path: Path, target: Path) -> None:
        copy(path, target)
        with path.open("a") as file:
            file.write("a line\n")

    monkeypatch.setattr(durable_fs, "copy", growing)
    stage(source, slot, ONE)
    assert (slot.folder / "a").read_text() == "content of a"


def test_a_file_that_always_changes_is_said(source: Path, slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, number = durable_fs.copy, iter(range(1_000_000))

    def changing(path: Path, target: Path) -> None:
        copy(path, target)
        path.write_text(f"{next(number)}")

    monkeypatch.setattr(durable_fs, "copy", changing)
    monkeypatch.setattr(required_files, "PATIENCE_S", 0.05)
    with pytest.raises(StorageError, match=r"source/a changes whenever it is copied"):
        stage(source, slot, ONE)


@pytest.mark.parametrize("change", ["written", "grown", "replaced", "vanished"])
def test_what_is_copied_in_the_background_is_what_was_reported(change: str, source: Path, slot: Slot) -> None:
    given = staging.inventory_of(source, slot, ONE)
    (source / "new").write_text("of the next step")
    match change:
        case "written":
            (source / "b").write_text("CONTENT OF B")
        case "grown":
            with (source / "b").open("a") as file:
                file.write("more")
        case "replaced":
            (source / "new").replace(source / "b")
        case "vanished":
            (source / "b").unlink()
    with pytest.raises(StorageError, match=r"source/b (changed after it was reported|disappeared while it was saved)"):
        stage(source, slot, ONE, given=given)


def test_files_that_came_after_the_report_are_not_of_it(source: Path, slot: Slot) -> None:
    given = staging.inventory_of(source, slot, ONE)
    (source / "new").write_text("of the next step")
    stage(source, slot, ONE, given=given)
    assert files(slot.folder) == {"a", "b", "deep/c"}


def test_a_file_that_cannot_be_written_is_named(source: Path, slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable_fs, "copy", full)
    with pytest.raises(StorageError, match=r"report 3 .*No space left on device: '.*source/a'"):
        stage(source, slot, ONE)


def test_odd_names_links_and_sizes(source: Path, slot: Slot) -> None:
    odd = ["new\nline", "späce and ü", b"\xff\xfe".decode(errors="surrogateescape"), "x" * 255, "-rf", "a\\b", "*"]
    for name in odd:
        (source / name).write_text("odd")
    (source / "empty").mkdir()
    with (source / "sparse").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"data")
    os.link(source / "a", source / "hard")
    deep = source
    for _ in range(30):
        deep = deep / ("d" * 100)
        deep.mkdir()
    (deep / "leaf").write_text("far down")
    (source.parent / "outside").mkdir()
    (source.parent / "outside/x").write_text("outside")
    for link, target in {
        "file": "a",
        "dir": "../outside",
        "up": "..",
        "self": ".",
        "loop": "loop",
        "gone": "no",
    }.items():
        (source / f"link-{link}").symlink_to(target)
    os.mkfifo(source / "pipe")
    with chdir(source), socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        stage(source, slot, ONE)
    found = files(slot.folder)
    assert {*odd, "a", "hard", "link-file", "link-dir/x", "sparse"} <= found
    assert (slot.folder / "empty").is_dir()
    assert any(name.endswith("/leaf") for name in found)
    assert not {"pipe", "socket", "link-gone", "link-loop"} & {path.name for path in slot.folder.iterdir()}
    sparse = slot.folder / "sparse"
    assert sparse.stat().st_size == 1 << 40
    assert sparse.stat().st_blocks < 10_000
    with sparse.open("rb") as file:
        file.seek(1 << 39)
        assert file.read(4) == b"data"


# --- files that are moved ---


@pytest.fixture
def outside(tmp_path: Path, source: Path) -> Path:
    """A directory that links in the source point to."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "x").write_text("precious")
    (source / "link").symlink_to("../outside")
    (source / "inner").symlink_to(source / "a")
    return folder


def take(source: Path, slot: Slot, note: Note = ONE) -> None:
    handed_over = handoff_records.begin(slot, source, note, KEY, inside=True)
    handoff_records.settle_inside(slot, handed_over, KEY)


def test_what_is_taken_leaves_the_directory_empty_and_what_links_lead_to_alone(
    source: Path, slot: Slot, outside: Path
) -> None:
    os.mkfifo(source / "pipe")
    inode = (source / "a").stat().st_ino
    take(source, slot)
    assert files(slot.folder) == {"a", "b", "deep/c", "inner", "link/x"}
    assert (slot.folder / "a").stat().st_ino == inode
    assert not any(path.is_symlink() or path.is_fifo() for path in slot.folder.rglob("*"))
    assert os.listdir(source) == []
    assert (outside / "x").read_text() == "precious"
    assert set(layout.staging(slot.run).iterdir()) == {slot.folder, slot.note, slot.handoff}


def test_what_was_copied_is_removed_without_following_links(source: Path, slot: Slot, outside: Path) -> None:
    required_files.remove(source, stage(source, slot, ONE))
    assert os.listdir(source) == []
    assert (outside / "x").read_text() == "precious"


class Killed(BaseException):
    """Simulates a kill: no code runs after it."""


def until_killed(act: Callable[[], object], num_steps: int, patch: pytest.MonkeyPatch, *, undone: bool = False) -> bool:
    """Call ``act``, but kill it after this many filesystem changes. Returns whether it was killed."""
    left = iter(range(num_steps))

    def counted(do: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object, **rest: object) -> object:
            if next(left, None) is None:
                raise Killed
            return do(*args, **rest)

        return step

    with patch.context() as context:
        for name in ("rename", "mkdir", "unlink", "symlink", "link", "rmdir"):
            context.setattr(os, name, counted(getattr(os, name)))
        if not undone:
            context.setattr(handoff_records, "undo", lambda *args: None)  # a killed process puts nothing back
        try:
            act()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("inside", [True, False])
def test_whoever_is_killed_while_files_are_taken_loses_none(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill at any step, opening the run leaves the files in the user's directory or in a checkpoint."""

    def act() -> None:
        slot, source = Slot(home / "run", 1, 3, 0), home / "source"
        handed_over = handoff_records.begin(slot, source, ONE, KEY, inside=inside)
        if inside:
            handoff_records.settle_inside(slot, handed_over, KEY)
        else:
            handoff_records.copy_aside(handed_over.aside, slot.part, slot.run)
            handoff_records.settle_copy(slot, handed_over, KEY)

    def prepare(number: int) -> Path:
        where = tmp_path / str(number)
        (where / "run/checkpoints").mkdir(parents=True)
        (where / "source/deep").mkdir(parents=True)
        for name in ("a", "b", "deep/c"):
            (where / "source" / name).write_text(name)
        (where / "source/link").symlink_to(where / "source/a")
        return where

    kept = []
    for number in range(1000):
        home = prepare(number)
        if not until_killed(act, number, monkeypatch):
            break
        recovered = recover(home / "run", crashed=True, signer=Signer("id", KEY))
        kept.append(bool(recovered.kept))
        if recovered.kept:
            assert recovered.kept[0].manifest.files.keys() == {"a", "b", "deep/c", "link"}
        else:
            assert {"a", "b", "deep/c", "link"} <= files(home / "source"), number
        assert not [path for path in home.iterdir() if path.name not in ("run", "source")]
    assert len(kept) > 5
    assert kept == sorted(kept), "from some step on, it counts"
    assert kept[-1]


@pytest.mark.parametrize("how", ["inside", "across", "not movable"])
def test_whoever_is_killed_while_files_are_taken_has_them_back_after_a_sweep(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill at any step of the move or of giving back, the next sweep leaves all files with the user."""
    rename = os.rename

    def not_across(source: Path, target: Path) -> None:
        if handoff_records.PREFIX in str(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(source, target)

    def act() -> None:
        slot = Slot(home / "run", 1, 3, 0)
        handed_over = handoff_records.begin(slot, home / "source", ONE, KEY, inside=how == "inside")
        assert handoff_records.finish(slot.run, handed_over, KEY)
        backend.sweep(1, [])

    if how == "not movable":
        monkeypatch.setattr(os, "rename", not_across)
    for number in range(1000):
        home = tmp_path / str(number)
        backend = LocalCheckpointBackend(home / "run", Signer("id", KEY))
        (home / "source/deep").mkdir(parents=True)
        for name in ("a", "b", "deep/c"):
            (home / "source" / name).write_text(name)
        killed = until_killed(act, number, monkeypatch, undone=True)
        backend.sweep(1, [])
        backend.recover(crashed=True)
        found = {path.read_text() for path in home.rglob("*") if path.is_file()}
        assert found >= {"a", "b", "deep/c"}, number
        assert files(home / "run") == set(), number
        if not killed:
            assert number > 10
            return
    raise AssertionError("it never came to its end")


def test_what_is_put_back_does_not_replace_what_is_newer(source: Path, slot: Slot) -> None:
    handed_over = handoff_records.begin(slot, source, ONE, KEY)
    (source / "a").write_text("of the next step")
    handoff_records.undo(slot.run, handed_over)
    assert (source / "a").read_text() == "of the next step"
    assert (source.with_name("source.report-3") / "a").read_text() == "content of a"


def test_what_is_put_back_twice_replaces_nothing(source: Path, slot: Slot) -> None:
    handed_over = handoff_records.begin(slot, source, ONE, KEY, inside=True)
    for place in (source, source.with_name("source.report-3")):
        (place / "deep").mkdir(parents=True)
        (place / "deep/c").write_text("newer")
    where = handoff_records.undo(slot.run, handed_over)
    assert where == source.with_name("source.report-3-2")
    assert files(where) == {"a", "b", "deep/c"}
    assert (source.with_name("source.report-3") / "deep/c").read_text() == "newer"


@pytest.mark.parametrize("why", ["another key", "no way back"])
def test_taken_files_that_cannot_be_put_back_are_not_swept(
    why: str, source: Path, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    handoff_records.begin(slot, source, ONE, KEY, inside=True)
    key = Key(b"another") if why == "another key" else KEY
    if why == "no way back":
        monkeypatch.setattr(durable_fs, "boot_id", lambda: "another")
        source.rmdir()
        source.write_text("a file now")
    recovered = recover(slot.run, crashed=True, signer=Signer("id", key))
    [place] = (slot.run / layout.RESCUED).iterdir()
    assert files(place) == {"a", "b", "deep/c"}
    assert str(place) in "".join(recovered.notes)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("links", [False, True])
def test_who_opens_a_copy_of_a_run_takes_nothing_from_the_original(
    inside: bool, links: bool, source: Path, slot: Slot, tmp_path: Path
) -> None:
    handoff_records.begin(slot, source, ONE, KEY, inside=inside)
    (slot.run / layout.CHECKPOINTS).mkdir(exist_ok=True)
    copied = tmp_path / "copied"
    shutil.copytree(slot.run, copied, copy_function=os.link if links else shutil.copy2)
    for run in (copied, slot.run):
        [kept] = recover(run, crashed=True, signer=Signer("id", KEY)).kept
        assert kept.manifest.files.keys() == {"a", "b", "deep/c"}
    assert not list(source.parent.glob(f"{handoff_records.PREFIX}*"))


def test_what_a_run_had_taken_is_removed_with_it(source: Path, tmp_path: Path) -> None:
    rundir = open_run(tmp_path / "removed", "auto")
    handoff_records.begin(Slot(rundir.path, 1, 3, 0), source, ONE, rundir.key)
    rundir.close()
    remove_run(rundir.path)
    assert not list(source.parent.glob(f"{handoff_records.PREFIX}*"))
    assert not rundir.path.exists()


def test_a_copy_of_a_run_puts_nothing_back_that_the_original_has_taken(
    source: Path, slot: Slot, tmp_path: Path
) -> None:
    handed_over = handoff_records.begin(slot, source, ONE, KEY)
    copied = shutil.copytree(slot.run, tmp_path / "copied")
    handoff_records.undo(Path(copied), handed_over)
    assert files(source) == set()
    assert files(handed_over.aside) == {"a", "b", "deep/c"}


@pytest.mark.parametrize("how", ["hard link", "open", "mapped"])
def test_what_is_written_to_a_file_after_it_was_taken_is_not_in_the_checkpoint(
    how: str, source: Path, slot: Slot, tmp_path: Path
) -> None:
    if how == "hard link":
        os.link(source / "a", tmp_path / "mine")
    with (source / "a").open("r+b") as file:
        content = mmap.mmap(file.fileno(), 0) if how == "mapped" else None
        if how != "open":
            file.close()
        take(source, slot)
        if content is not None:
            content[:3] = b"new"
            content.close()
        elif how == "open":
            file.write(b"new")
        else:
            (tmp_path / "mine").write_text("new")
    assert (slot.folder / "a").read_text() == "content of a"
    assert files(slot.folder) == {"a", "b", "deep/c"}


def test_names_of_one_file_inside_a_directory_are_taken_without_a_copy(source: Path, slot: Slot) -> None:
    os.link(source / "a", source / "deep/again")
    inode = (source / "a").stat().st_ino
    take(source, slot)
    assert {(slot.folder / name).stat().st_ino for name in ("a", "deep/again")} == {inode}


def test_what_is_put_back_finds_its_directory_gone_and_makes_it_again(source: Path, slot: Slot) -> None:
    handed_over = handoff_records.begin(slot, source, ONE, KEY)
    source.rmdir()
    handoff_records.undo(slot.run, handed_over)
    assert files(source) == {"a", "b", "deep/c"}


def test_a_directory_that_is_a_link_is_taken(source: Path, slot: Slot, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere/link"
    link.symlink_to(source)
    take(link, slot)
    assert files(slot.folder) == {"a", "b", "deep/c"}
    assert link.is_symlink()


@pytest.mark.parametrize("error", [18, 16, 13, 30])
def test_files_that_cannot_be_moved_are_copied_and_then_removed(
    error: int, source: Path, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, because the directory is a mount point."""
    rename = os.rename

    def refused(a: Path, b: Path) -> None:
        if str(a).endswith("source/deep"):
            raise OSError(error, os.strerror(error))
        rename(a, b)

    monkeypatch.setattr(os, "rename", refused)
    handed_over = handoff_records.begin(slot, source, ONE, KEY)
    assert files(source) == set()
    assert handoff_records.finish(slot.run, handed_over, KEY)
    assert files(slot.folder) == {"a", "b", "deep/c"}
    assert [path.name for path in source.parent.iterdir() if path.name.startswith(handoff_records.PREFIX)] == []


def test_what_a_link_led_to_has_vanished_before_it_was_copied(source: Path, slot: Slot, outside: Path) -> None:
    handed_over = handoff_records.begin(slot, source, ONE, KEY)
    (outside / "x").unlink()
    handoff_records.copy_aside(handed_over.aside, slot.part, slot.run)
    with pytest.raises(StorageError, match="link/x disappeared before it was saved"):
        handoff_records.settle_copy(slot, handed_over, KEY)
    assert not slot.folder.exists()


def test_an_inventory_names_what_is_missing(source: Path) -> None:
    given = Inventory.of(source, leave_out=source / "none")
    given.check(["a", "b", "deep/c"], source)
    with pytest.raises(Incomplete, match="b disappeared"):
        given.check(["a", "deep/c"], source)
