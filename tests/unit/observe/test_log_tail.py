"""Tails return complete lines of a growing file, limited to a readable amount."""

from __future__ import annotations

from pathlib import Path

from headway.observe.log_tail import SHOW_BYTES, TRACEBACK_FOLLOWS, Tail


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


def test_output_beyond_the_limit_is_cut_with_a_note(tmp_path: Path) -> None:
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


def test_the_full_traceback_is_only_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = Tail(log)
    log.write_text(f"before\n{TRACEBACK_FOLLOWS}\nTraceback\nafter")
    assert list(tail.last()) == ["before"]
