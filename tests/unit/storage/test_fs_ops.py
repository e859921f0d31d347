"""File operations: listings, links, atomic JSON files, and refusal of special files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.core.errors import StorageError
from headway.storage import fs_ops


def test_walk_lists_directories_before_their_content_and_skips_pipes_and_cycles(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").touch()
    (tmp_path / "deep" / "up").symlink_to(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "pipe")
    names = [name for name, _ in fs_ops.walk(tmp_path, leave_out=tmp_path / "out")]
    assert names == ["deep", "deep/a"]


def test_walk_ends_soon_in_directories_that_link_to_each_other(tmp_path: Path) -> None:
    """Twelve of them would have about a billion paths."""
    for number in range(12):
        (tmp_path / str(number)).mkdir()
        for other in {*range(12)} - {number}:
            (tmp_path / str(number) / f"to-{other}").symlink_to(f"../{other}")
    with pytest.raises(StorageError, match="is reached by more than 1,000 paths"):
        list(fs_ops.walk(tmp_path, leave_out=tmp_path))


@pytest.mark.parametrize(("mode", "expected"), [(0o6755, 0o750), (0o1666, 0o640), (0o400, 0o600)])
def test_copies_for_the_user_follow_the_umask_and_are_never_set_uid(mode: int, expected: int, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("content")
    (tmp_path / "source" / "file").chmod(mode)
    before = os.umask(0o027)
    try:
        fs_ops.copy_tree(tmp_path / "source", tmp_path / "copy")
    finally:
        os.umask(before)
    assert (tmp_path / "copy" / "file").stat().st_mode & 0o7777 == expected
    assert (tmp_path / "copy" / "file").read_text() == "content"


def test_entries_of_a_missing_directory_are_none(tmp_path: Path) -> None:
    assert fs_ops.entries(tmp_path / "missing") == []


def test_links_are_replaced_by_their_targets(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    folder.mkdir()
    (outside / "far").write_text("far")
    (folder / "near").write_text("near")
    (folder / "to-near").symlink_to("near")
    (folder / "to-far").symlink_to(outside / "far")
    (folder / "to-directory").symlink_to(outside)
    (folder / "dangling").symlink_to("nothing")
    assert fs_ops.has_links(folder)
    fs_ops.replace_links(folder)
    assert [path.name for path in folder.rglob("*") if path.is_symlink()] == ["dangling"]
    assert (folder / "to-near").samefile(folder / "near")
    assert not (folder / "to-far").samefile(outside / "far")
    assert (folder / "to-directory" / "far").read_text() == "far"


def test_names_that_look_like_replaced_links_are_kept(tmp_path: Path) -> None:
    for name in ("x", ".x.headway-link", ".y.headway-link"):
        (tmp_path / name).write_text(name)
    fs_ops.replace_links(tmp_path)
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == [".x.headway-link", ".y.headway-link", "x"]


def test_files_with_links_from_outside_are_detached(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("a")
    os.link(folder / "a", tmp_path / "other")
    fs_ops.detach_files(folder, leases=False)
    (tmp_path / "other").write_text("changed")
    assert (folder / "a").read_text() == "a"


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_special_files_are_refused_without_blocking(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "it"
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    with pytest.raises(StorageError, match=f"is a {kind}, not a file"):
        fs_ops.open_regular(path)


def test_appending_refuses_links_and_detaches_hard_links(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(StorageError, match="does not write through links"):
        fs_ops.open_to_append(tmp_path / "link")
    os.link(tmp_path / "a", tmp_path / "copy")
    fd = fs_ops.open_to_append(tmp_path / "copy")
    os.write(fd, b"b")
    os.close(fd)
    assert (tmp_path / "a").read_text() == "a"
    assert (tmp_path / "copy").read_text() == "ab"


def test_contents_and_beginnings_are_compared(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    a.write_text("one")
    b.write_text("one and more")
    c.write_text("two")
    assert fs_ops.same_content(a, a)
    assert not fs_ops.same_content(a, b)
    assert not fs_ops.same_content(a, c)
    assert fs_ops.same_beginning(a, b)
    assert not fs_ops.same_beginning(c, b)


def test_a_json_file_is_replaced_and_no_link_is_followed(tmp_path: Path) -> None:
    path, victim = tmp_path / "value.json", tmp_path / "victim"
    victim.write_text("victim")
    (tmp_path / "value.json.new").symlink_to(victim)
    fs_ops.write_json(path, {"a": 1})
    assert fs_ops.read_json(path) == {"a": 1}
    assert victim.read_text() == "victim"
    assert path.stat().st_mode & 0o077 == 0
    fs_ops.remove_json(path)
    assert os.listdir(tmp_path) == ["victim"]


def test_damaged_and_oversized_json_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "value.json"
    for text in ("{", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(StorageError, match="is damaged"):
            fs_ops.read_json(path)
    monkeypatch.setattr(fs_ops, "MAX_JSON_BYTES", 10)
    path.write_text("1" * 11)
    with pytest.raises(StorageError, match="is damaged: it has more than"):
        fs_ops.read_json(path)
    with pytest.raises(StorageError, match="report fewer metrics"):
        fs_ops.json_bytes("x" * 11)


def test_sizes_count_regular_files_only(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b").write_text("12")
    (tmp_path / "a").write_text("1")
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    assert fs_ops.sizes(tmp_path) == {"a": 1, "deep/b": 2}
