"""Tails, tracebacks, words."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core import phrases
from headway.observe.log_tail import SHOW_BYTES, TRACEBACK_FOLLOWS, Tail
from headway.observe.tracebacks import folded, full


def test_a_tail_gives_whole_lines_as_they_come(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = Tail(log)
    assert list(tail.lines()) == []
    with log.open("ab") as file:
        file.write(b"one\ntw")
        file.flush()
        assert list(tail.lines()) == ["one"]
        assert tail.partial == "tw"
        file.write(b"o\n")
        file.flush()
        assert list(tail.lines()) == ["two"]


def test_a_tail_begins_where_the_file_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\n")
    tail = Tail(log)
    log.write_text("old\nnew")
    assert list(tail.last()) == ["new"]


def test_of_a_progress_bar_the_last_state_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = Tail(log)
    log.write_bytes(b"\r10%\r50%\r90%")
    assert list(tail.lines()) == []
    assert tail.partial == "90%"
    log.write_bytes(b"\r10%\r50%\r90%\r100%\nwindows\r\n")
    assert list(tail.lines()) == ["100%", "windows"]


def test_too_much_is_cut_and_said_so(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "rank-0.out"
    log.parent.mkdir()
    tail = Tail(log)
    log.write_bytes(b"x" * 999 + b"\n" * 1)
    with log.open("ab") as file:
        file.write((b"y" * 99 + b"\n") * 5000)
    lines = list(tail.lines())
    assert lines[0].startswith("… 4")
    assert lines[0].endswith(" KB more in logs/rank-0.out")
    assert sum(map(len, lines)) <= SHOW_BYTES + 100
    assert set(lines[1:]) == {"y" * 99}


def test_a_line_without_end_stays_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = Tail(log)
    for _ in range(10):
        with log.open("ab") as file:
            file.write(b"z" * SHOW_BYTES)
        list(tail.lines())
    assert len(tail.partial) <= SHOW_BYTES


def test_the_whole_traceback_is_for_the_log_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = Tail(log)
    log.write_text(f"before\n{TRACEBACK_FOLLOWS}\nTraceback\nafter")
    assert list(tail.last()) == ["before"]


def test_library_frames_are_folded_and_causes_kept() -> None:
    import json

    def users_code() -> None:
        try:
            json.loads("{")
        except ValueError as error:
            raise RuntimeError("cannot read the config") from error

    with pytest.raises(RuntimeError) as caught:
        users_code()
    text = folded(caught.value)
    assert "frames in json, last decoder.py" in text
    assert 'json.loads("{")' in text
    assert text.index("JSONDecodeError") < text.index("RuntimeError: cannot read the config")
    assert len(text.splitlines()) < len(full(caught.value).splitlines())


def test_an_error_that_no_line_of_the_users_led_to_is_shown_whole() -> None:
    from headway.core.wire import WireError, decode

    with pytest.raises(WireError) as caught:
        decode(1, memoryview(b""))
    stripped = caught.value.with_traceback(None)
    assert folded(stripped) == full(stripped)


def test_numbers_in_words() -> None:
    assert phrases.ranks([3]) == "rank 3"
    assert phrases.ranks([1, 0]) == "ranks 0 and 1"
    assert phrases.ranks([0, 1, 2, 3, 6, 7]) == "ranks 0-3, 6 and 7"
    assert phrases.ranks([0, 1, 2]) == "ranks 0-2"
    assert phrases.ranks_are([3]) == "rank 3 is"
    assert phrases.ranks_are([1, 0]) == "ranks 0 and 1 are"
    assert phrases.duration(2.345) == "2.3 s"
    assert phrases.duration(125) == "2 min 05 s"
    assert phrases.duration(7265) == "2 h 01 min"
    assert phrases.size(999) == "999 B"
    assert phrases.size(1536) == "1.5 KB"
    assert phrases.size(5e15) == "5000.0 TB"
    assert phrases.count(1, "worker") == "1 worker"
    assert phrases.count(1500, "report") == "1,500 reports"
    assert phrases.metrics({"a": 0.123456, "b": "x" * 30, "c": [1], "d": 2}) == f"a=0.1235 b={'x' * 19}… d=2"
