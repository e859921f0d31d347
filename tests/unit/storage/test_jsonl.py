"""Appended lines are read once each, as they are completed, from either end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headway.storage.jsonl import Appender, DamagedLine, JsonLines, json_object


def lines_in(path: Path) -> JsonLines[dict[str, Any]]:
    return JsonLines(path, json_object)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_tail_gives_each_line_once(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    tail = lines_in(path).tail()
    assert list(tail.lines()) == []
    assert not tail.has_grown
    append(path, b'{"n": 1}\n{"n": 2}\n')
    assert tail.has_grown
    assert list(tail.lines()) == [{"n": 1}, {"n": 2}]
    assert list(tail.lines()) == []
    assert not tail.has_grown


def test_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    tail = lines_in(path).tail()
    append(path, b'{"n": 1}\n{"n"')
    assert list(tail.lines()) == [{"n": 1}]
    assert tail.has_grown
    assert list(tail.lines()) == []
    append(path, b": 2}\n")
    assert list(tail.lines()) == [{"n": 2}]


def test_a_tail_continues_at_the_offset_of_another(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append(path, b'{"n": 1}\n')
    first = lines_in(path).tail()
    assert list(first.lines()) == [{"n": 1}]
    append(path, b'{"n": 2}\n')
    assert list(lines_in(path).tail(first.offset).lines()) == [{"n": 2}]


def test_a_tail_that_is_left_in_the_middle_continues_there(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append(path, b"".join(b'{"n": %d}\n' % n for n in range(5)))
    tail = lines_in(path).tail()
    assert next(tail.lines()) == {"n": 0}
    assert [line["n"] for line in tail.lines()] == [1, 2, 3, 4]


@pytest.mark.parametrize("damage", [b"\0" * 9, b"{", b"[1]", b'"text"', b"\xff\xfe", b"[" * 300 + b"]" * 300, b""])
def test_a_damaged_line_is_left_out_of_a_tail_and_hides_no_other(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "lines"
    append(path, b'{"n": 1}\n' + damage + b'\n{"n": 2}\n')
    tail = lines_in(path).tail()
    assert list(tail.lines()) == [{"n": 1}, {"n": 2}]
    assert tail.offset == path.stat().st_size
    assert [type(line) for line in lines_in(path).scan()] == [dict, DamagedLine, dict]
    assert lines_in(path).damage() == "lines: 1 damaged line ignored"


def test_a_line_that_is_too_long_is_skipped_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.storage.jsonl.MAX_JSON_BYTES", 100)
    monkeypatch.setattr("headway.storage.jsonl._CHUNK_BYTES", 64)
    path = tmp_path / "lines"
    append(path, b'{"n": 1}\n{"text": "' + b"x" * 1000)
    tail = lines_in(path).tail()
    assert list(tail.lines()) == [{"n": 1}]
    append(path, b'"}\n{"n": 2}\n')
    assert list(tail.lines()) == [{"n": 2}]


def test_a_hole_of_a_terabyte_is_read_at_once_and_not_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append(path, b'{"n": 1}\n')
    os.truncate(path, 1 << 40)
    append(path, b'\n{"n": 2}\n')
    assert list(lines_in(path).lines()) == [{"n": 1}, {"n": 2}]
    assert next(lines_in(path).backwards()) == {"n": 2}


def test_an_appender_ends_what_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append(path, b'{"n": 1}\n{"n": ')
    appender = Appender(path)
    appender.write(json.dumps({"n": 2}).encode() + b"\n")
    appender.close()
    assert list(lines_in(path).lines()) == [{"n": 1}, {"n": 2}]


def test_a_value_that_a_reader_refuses_is_damage(tmp_path: Path) -> None:
    def positive(line: Any) -> int:
        if line["n"] < 0:
            raise ValueError("negative")
        return int(line["n"])

    path = tmp_path / "lines"
    append(path, b'{"n": 1}\n{"n": -1}\n{"n": 3}\n')
    assert list(JsonLines(path, positive).lines()) == [1, 3]
    assert list(JsonLines(path, positive).backwards()) == [3, 1]
    assert list(JsonLines(path, positive).scan())[1] == DamagedLine("negative")


def test_a_torn_line_is_not_there_and_is_cut_off_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"a": 1}\n{"b": ' + b"x" * 10_000)
    assert list(JsonLines(path, json_object).lines()) == [{"a": 1}]
    appender = Appender(path)
    appender.write(b'{"c": 3}\n')
    appender.close()
    assert list(JsonLines(path, json_object).lines()) == [{"a": 1}, {"c": 3}]
    assert list(JsonLines(tmp_path / "none", json_object).lines()) == []


@pytest.mark.parametrize("torn", ["", '{"n": 1', "{"])
@pytest.mark.parametrize("count", [0, 1, 2, 3000])
def test_lines_come_backwards_as_they_come_forwards(tmp_path: Path, count: int, torn: str) -> None:
    path = tmp_path / "lines"
    path.write_text("".join(json.dumps({"n": n, "text": "x" * (n % 90)}) + "\n" for n in range(count)) + torn)
    assert list(JsonLines(path, json_object).backwards()) == list(reversed(list(JsonLines(path, json_object).lines())))


def test_a_sparse_file_of_a_terabyte_is_appended_to_at_once(tmp_path: Path) -> None:
    """Headway writes no line this long. The appender ends it, so that later lines can be read."""
    with (tmp_path / "lines").open("wb") as file:
        file.write(b'{"a": 1}\n')
        file.truncate(1 << 40)
    appender = Appender(tmp_path / "lines")
    appender.write(b'{"a": 2}\n')
    appender.close()
    assert list(JsonLines(tmp_path / "lines", json_object).lines()) == [{"a": 1}, {"a": 2}]
