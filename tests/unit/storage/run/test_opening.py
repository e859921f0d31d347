"""Files, checkpoints, run directories: what is written is whole, what is torn is not there."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from headway.core.errors import ConfigError, StorageError
from headway.core.schema.data_stats import DataStatsLine
from headway.core.schema.journal_entries import EndEntry, LaunchEntry
from headway.core.schema.run_description import Opening
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.commit import CommitRequest, commit, discard, extend
from headway.storage.checkpoint.recovery import committed, next_number, survey
from headway.storage.checkpoint.staging import Note, Slot, stage
from headway.storage.durable_fs import exchange, is_read
from headway.storage.fs_ops import write_json
from headway.storage.jsonl import Appender, JsonLines, json_object
from headway.storage.run import layout, opening
from headway.storage.run.opening import create_run, is_open, open_run
from headway.storage.run.place import DirectoryPlace
from headway.storage.run.reader import RunReader, runs


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
    """Rank 0 copies while rank 1 has just emptied the file to write it: only the later copy is sure to be whole."""
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


def test_folders_are_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "is").write_text(name)
    exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a/is").read_text() == "b"
    import ctypes

    monkeypatch.setattr(ctypes, "CDLL", lambda *args, **kwargs: object())
    exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a/is").read_text() == "a", "and without the kernel's help as well"


def test_what_has_no_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    staged(tmp_path, 0, a="0")
    saved = commit(tmp_path, commitment(0))
    (tmp_path / "checkpoints/checkpoint_000009").mkdir()
    discard(saved.path)
    assert committed(tmp_path) == []


def test_a_manifest_of_another_format_is_refused(tmp_path: Path) -> None:
    staged(tmp_path, 0, a="0")
    path = commit(tmp_path, commitment(0)).path / layout.MANIFEST
    write_json(path, {**json.loads(path.read_text()), "format": 99})
    assert committed(tmp_path) == []
    assert "has format 99; this version reads 1: upgrade Headway" in survey(tmp_path).damaged[path.parent]
    path.write_text("{")
    assert "is damaged" in survey(tmp_path).damaged[path.parent]


def test_staging_refuses_what_would_be_no_checkpoint(tmp_path: Path) -> None:
    slot = Slot(tmp_path / "run", 1, 0, 0)
    with pytest.raises(StorageError, match="is not a directory"):
        stage(tmp_path / "nothing", slot, Note(1, {}))
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="is a file, not a directory"):
        stage(tmp_path / "file", slot, Note(1, {}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match="holds no file"):
        stage(tmp_path / "empty", slot, Note(1, {}))
    (tmp_path / "empty" / layout.MANIFEST).write_text("mine")
    with pytest.raises(StorageError, match="a name that Headway needs"):
        stage(tmp_path / "empty", slot, Note(1, {}))
    assert not any(layout.staging(slot.run).iterdir())


def test_a_checkpoint_is_a_path_and_no_more(tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_directory(tmp_path)
    assert checkpoint == Checkpoint(str(tmp_path))
    assert hash(checkpoint) == hash(Checkpoint(tmp_path))
    assert repr(checkpoint) == f"Checkpoint('{tmp_path}')"
    with pytest.raises(StorageError, match="is not there"), Checkpoint(tmp_path / "gone").as_directory():
        pass


def test_a_torn_line_is_not_there_and_is_cut_off_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"a": 1}\n{"b": ' + b"x" * 10_000)
    assert list(JsonLines(path, json_object).lines()) == [{"a": 1}]
    appender = Appender(path)
    appender.write(b'{"c": 3}\n')
    appender.close()
    assert list(JsonLines(path, json_object).lines()) == [{"a": 1}, {"c": 3}]
    assert list(JsonLines(tmp_path / "none", json_object).lines()) == []


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


def test_a_later_attempt_tells_its_reports_anew(tmp_path: Path) -> None:
    lines = [
        {"attempt": 1, "first_seq": 0},
        *({"rank": 0, "seq": s, "attempt": 1, "metrics": {"a": 1}} for s in range(4)),
        {"attempt": 2, "first_seq": 2},
        {"rank": 1, "seq": 2, "attempt": 2, "metrics": {"a": 9}},
        {"rank": 0, "seq": 2, "attempt": 2, "metrics": {"a": 2}},
    ]
    path = tmp_path / layout.METRICS
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = RunReader(tmp_path, DirectoryPlace(tmp_path))
    assert [(row.seq, row.metrics["a"]) for row in record.reports()] == [(0, 1), (1, 1), (2, 2)]
    assert record.newest_metrics() == {"a": 2}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines[:6]))
    assert record.newest_metrics() == {"a": 1}, "an attempt that has not reported yet"
    assert RunReader(tmp_path / "none", DirectoryPlace(tmp_path)).newest_metrics() is None


def test_the_newest_metrics_of_a_long_history(tmp_path: Path) -> None:
    line = '{{"rank": {}, "seq": {}, "attempt": 1, "metrics": {{"a": {}}}}}\n'
    text = "".join(line.format(rank, seq, seq) for seq in range(5000) for rank in (0, 1))
    (tmp_path / layout.METRICS).write_text('{"attempt": 1, "first_seq": 0}\n' + text)
    assert RunReader(tmp_path, DirectoryPlace(tmp_path)).newest_metrics() == {"a": 4999}


def test_a_checkpoint_that_is_taken_away_leaves_nothing(tmp_path: Path) -> None:
    staged(tmp_path, 0, a="0")
    saved = commit(tmp_path, commitment(0))
    discard(saved.path)
    discard(saved.path)
    assert not saved.path.exists()
    assert not any(layout.staging(tmp_path).iterdir())


def test_a_checkpoint_that_goes_while_it_is_opened_is_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(tmp_path, 0, a="0")
    saved = commit(tmp_path, commitment(0))
    lock = fcntl.flock

    def discard_first(fd: int, operation: int) -> None:
        discard(saved.path)
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", discard_first)
    with pytest.raises(StorageError, match="is not there"), Checkpoint(saved.path).as_directory():
        pass


def test_who_opens_a_checkpoint_while_a_larger_one_takes_its_place_reads_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(tmp_path, 0, a="0")
    staged(tmp_path, 1, b="1")
    saved = commit(tmp_path, commitment(0))
    lock = fcntl.flock

    def extend_first(fd: int, operation: int) -> None:
        monkeypatch.undo()
        extend(Path(saved.path), Slot(tmp_path, 1, 0, 1))
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", extend_first)
    with Checkpoint(saved.path).as_directory() as folder:
        assert {"a", "b"} <= set(os.listdir(folder))
        assert is_read(Path(folder))
    assert not is_read(Path(saved.path))


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
    with pytest.raises(StorageError, match="a name that Headway needs"):
        stage(old.path, Slot(run, 1, 6, 0), Note(1, {}))


def test_a_save_that_was_interrupted_leaves_room_for_the_next(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 1, 0, 0)
    slot.part.mkdir(parents=True)
    (slot.part / "half").write_text("x")
    staged(tmp_path, 0, whole="y")
    assert [path.name for path in slot.folder.iterdir()] == ["whole"]


def test_foreign_and_damaged_folders_do_not_hide_runs(tmp_path: Path) -> None:
    create_run(tmp_path, "mine").close()
    for name, text in {"list": "[]", "torn": "{", "foreign": '{"created": "yesterday"}', "other": "{}"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    found = runs(tmp_path)
    assert [record.path.name[:4] for record in found.readable] == ["mine"]
    assert set(found.unreadable) == {"list", "torn", "foreign", "other"}
    with pytest.raises(StorageError, match="is not of a run of ours"):
        open_run(tmp_path / "other", "auto")


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
    with pytest.raises(ConfigError, match="is not a run of ours"):
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
    monkeypatch.setattr(opening, "_is_foreign", lambda path: path.name == "run")
    with pytest.raises(StorageError, match=r"belongs to .*: choose another name, or give RunConfig\(trust=True\)"):
        open_run(tmp_path / "run", "auto")
    open_run(tmp_path / "run", "auto", trust=True).close()
    tmp_path.chmod(0o1777)
    redirected = open_run(tmp_path / "run", "auto")
    redirected.close()
    assert redirected.path.name == "run-uid-12345"
    assert "belongs to" in redirected.recovered.notes[0]
    with pytest.raises(StorageError, match="belongs to"):
        open_run(tmp_path / "run", "must")


def test_one_damaged_line_hides_neither_the_others_nor_the_checkpoints(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", "auto")
    run.note(LaunchEntry(attempt=1, num_workers=1, first_seq=0))
    run.note(LaunchEntry(attempt=2, num_workers=1, first_seq=0))
    run.note(EndEntry(attempt=2, state="FINISHED"))
    run.record(b'{"rank":0,"seq":0,"metrics":{"a":0}}\n{"rank":0,"seq":1,"metrics":{"a":1}}\n')
    run.close()
    for name in ("events.jsonl", "metrics.jsonl"):
        data = bytearray((run.path / name).read_bytes())
        data[3:11] = bytes(8)
        (run.path / name).write_bytes(data)
    record = RunReader.at(run.path)
    assert record.state == "FINISHED"
    assert [row.metrics for row in record.reports()] == [{"a": 1}]
    assert record.damage() == ["events.jsonl: 1 damaged line is left out", "metrics.jsonl: 1 damaged line is left out"]
    again = open_run(run.path, "auto")
    again.close()
    assert again.past_attempts == 2
    assert again.recovered.notes == ["events.jsonl: 1 damaged line is left out"]


def test_whoever_looks_does_not_lock_out_whoever_opens(tmp_path: Path) -> None:
    open_run(tmp_path / "run", "auto").close()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            is_open(tmp_path / "run")

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(100):
            open_run(tmp_path / "run", "auto").close()
    finally:
        over.set()
        looking.join()
    assert not is_open(tmp_path / "run")


@pytest.mark.parametrize("torn", ["", '{"n": 1', "{"])
@pytest.mark.parametrize("count", [0, 1, 2, 3000])
def test_lines_come_backwards_as_they_come_forwards(tmp_path: Path, count: int, torn: str) -> None:
    path = tmp_path / "lines"
    path.write_text("".join(json.dumps({"n": n, "text": "x" * (n % 90)}) + "\n" for n in range(count)) + torn)
    assert list(JsonLines(path, json_object).backwards()) == list(reversed(list(JsonLines(path, json_object).lines())))


def test_the_newest_metrics_are_those_of_rank_zero_in_the_last_attempt(tmp_path: Path) -> None:
    rundir = create_run(tmp_path, "run")
    rundir.record(b'{"rank":0,"seq":0,"metrics":{"n":0}}\n{"rank":0,"seq":1,"metrics":{"n":1}}\n')
    rundir.record(b'{"attempt":2,"first_seq":1}\n{"rank":1,"seq":1,"metrics":{"n":9}}\n')
    rundir.close()
    assert RunReader.at(rundir.path).newest_metrics() == {"n": 0}, "what came before the restart from report 0"


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl"])
@pytest.mark.parametrize(
    ("what", "damaged"),
    [
        ("first line", 1),
        ("binary in the middle", 1),
        ("last line", 1),
        ("half a line at the end", 0),
        ("two lines run together", 1),
        ("a line of another kind", 1),
        ("empty", 0),
        ("gone", 0),
    ],
)
def test_a_run_is_read_and_continued_whatever_happened_to_its_lines(
    what: str, damaged: int, name: str, tmp_path: Path
) -> None:
    run = open_run(tmp_path / "run", "auto")
    for attempt in (1, 2, 3):
        run.note(LaunchEntry(attempt=attempt, num_workers=1, first_seq=0))
        run.record(b'{"rank":0,"seq":%d,"metrics":{"a":1}}\n' % attempt)
    run.close()
    path = run.path / name
    first, second, third = path.read_bytes().splitlines(keepends=True)
    content = {
        "first line": b"\0" * len(first) + b"\n" + second + third,
        "binary in the middle": first + os.urandom(20).replace(b"\n", b"") + b"\n" + third,
        "last line": first + second + third[:10] + b"\n",
        "half a line at the end": first + second + third[:10],
        "two lines run together": first + second[:-1] + third,
        "a line of another kind": first + b'{"rank":"x","event":3}\n' + third,
        "empty": b"",
    }
    path.unlink() if what == "gone" else path.write_bytes(content[what])
    record = RunReader.at(run.path)
    assert len(record.damage()) == damaged
    assert len(record.reports()) >= (0 if name == "metrics.jsonl" and what in ("empty", "gone") else 1)
    again = open_run(run.path, "auto")
    again.note(LaunchEntry(attempt=again.past_attempts + 1, num_workers=1, first_seq=0))
    again.record(b'{"rank":0,"seq":4,"metrics":{"a":4}}\n')
    again.close()
    assert record.reports()[-1].metrics == {"a": 4}
    assert isinstance(list(record.journal.lines())[-1], LaunchEntry)


def test_a_run_that_has_lost_its_description_is_left_alone_and_says_what_helps(tmp_path: Path) -> None:
    open_run(tmp_path / "run", "auto").close()
    (tmp_path / "run/run.json").unlink()
    with pytest.raises(StorageError, match=r"run\.json is gone: put it back .* resume_from_checkpoint"):
        open_run(tmp_path / "run", "auto")
    assert (tmp_path / "run/events.jsonl").exists()


def test_a_directory_that_another_user_makes_meanwhile_is_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look and ours being there; both, the name and the moment, can be seen from outside."""
    path = tmp_path / "run"
    monkeypatch.setattr(opening, "_create", lambda path: path.mkdir())
    monkeypatch.setattr(opening, "_is_foreign", lambda path: path.exists())
    with pytest.raises(StorageError, match=r"belongs to .*choose another name"):
        open_run(path, "auto")
    assert not list(path.iterdir())


def test_a_held_lock_may_say_anything(tmp_path: Path) -> None:
    open_run(tmp_path / "run", "auto").close()
    with (tmp_path / "run" / layout.LOCK).open("wb") as lock:
        lock.write(b"\xff\xfe" + bytes(1 << 20))
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="is open in") as caught:
            open_run(tmp_path / "run", "auto")
    assert len(str(caught.value)) < 1000


def test_a_sparse_file_of_a_terabyte_is_appended_to_at_once(tmp_path: Path) -> None:
    """No line of ours is so long: it is ended, and what follows can be read."""
    with (tmp_path / "lines").open("wb") as file:
        file.write(b'{"a": 1}\n')
        file.truncate(1 << 40)
    appender = Appender(tmp_path / "lines")
    appender.write(b'{"a": 2}\n')
    appender.close()
    assert list(JsonLines(tmp_path / "lines", json_object).lines()) == [{"a": 1}, {"a": 2}]
