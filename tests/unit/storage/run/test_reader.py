"""Readers of run directories, including damaged ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from headway.core.errors import StorageError
from headway.core.schema.journal_entries import EndEntry, LaunchEntry
from headway.storage.run import layout
from headway.storage.run.location import DirectoryRunLocation
from headway.storage.run.opening import create_run, open_run
from headway.storage.run.reader import RunReader, runs


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
    record = RunReader(tmp_path, DirectoryRunLocation(tmp_path))
    assert [(row.seq, row.metrics["a"]) for row in record.reports()] == [(0, 1), (1, 1), (2, 2)]
    assert record.newest_metrics() == {"a": 2}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines[:6]))
    assert record.newest_metrics() == {"a": 1}, "an attempt that has not reported yet"
    assert RunReader(tmp_path / "none", DirectoryRunLocation(tmp_path)).newest_metrics() is None


def test_the_newest_metrics_of_a_long_history(tmp_path: Path) -> None:
    line = '{{"rank": {}, "seq": {}, "attempt": 1, "metrics": {{"a": {}}}}}\n'
    text = "".join(line.format(rank, seq, seq) for seq in range(5000) for rank in (0, 1))
    (tmp_path / layout.METRICS).write_text('{"attempt": 1, "first_seq": 0}\n' + text)
    assert RunReader(tmp_path, DirectoryRunLocation(tmp_path)).newest_metrics() == {"a": 4999}


def test_foreign_and_damaged_folders_do_not_hide_runs(tmp_path: Path) -> None:
    create_run(tmp_path, "mine").close()
    for name, text in {"list": "[]", "torn": "{", "foreign": '{"created": "yesterday"}', "other": "{}"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    found = runs(tmp_path)
    assert [record.path.name[:4] for record in found.readable] == ["mine"]
    assert set(found.unreadable) == {"list", "torn", "foreign", "other"}
    with pytest.raises(StorageError, match="does not describe a Headway run"):
        open_run(tmp_path / "other", "auto")


def test_the_newest_metrics_are_those_of_rank_zero_in_the_last_attempt(tmp_path: Path) -> None:
    rundir = create_run(tmp_path, "run")
    rundir.record(b'{"rank":0,"seq":0,"metrics":{"n":0}}\n{"rank":0,"seq":1,"metrics":{"n":1}}\n')
    rundir.record(b'{"attempt":2,"first_seq":1}\n{"rank":1,"seq":1,"metrics":{"n":9}}\n')
    rundir.close()
    assert RunReader.at(rundir.path).newest_metrics() == {"n": 0}, "what came before the restart from report 0"


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
    assert record.damage() == ["events.jsonl: 1 damaged line ignored", "metrics.jsonl: 1 damaged line ignored"]
    again = open_run(run.path, "auto")
    again.close()
    assert again.past_attempts == 2
    assert again.recovered.notes == ["events.jsonl: 1 damaged line ignored"]


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
