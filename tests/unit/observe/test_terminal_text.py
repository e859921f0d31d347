"""Text for a terminal has no control characters."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.observe.terminal_text import colored, plain

TRICKS = {
    "the clipboard": "\x1b]52;c;ZWNobyBwd25lZAo=\x07",
    "the title": "\x1b]0;title\x07",
    "the screen": "\x1b[2J\x1b[H",
    "a link": "\x1b]8;;https://evil\x1b\\text\x1b]8;;\x1b\\",
    "C1": "\x9b2J\x90q",
    "turned around": "abc\u202etxt.exe\u2066x\u200f\u061c",
    "overwritten": "safe\rfake",
    "a bell": "\x07\x08\x7f\x00",
    "line separators": "a\u2028b\u2029c",
    "tags": "\U000e0041",
    "a surrogate": "\udce9",
}


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS.keys())
def test_control_characters_are_escaped(trick: str) -> None:
    for shown in (plain(trick), colored(trick)):
        assert shown.replace("\x1b[0m", "").isprintable()
        shown.encode()


@pytest.mark.parametrize("text", ["loss=0.5", "Größe 3 µm — ✓", "日本語", "👩‍🚀 family", "tab\there", "naïve\xa0space"])
def test_harmless_text_is_unchanged(text: str) -> None:
    assert plain(text) == colored(text) == text


def test_line_breaks_are_escaped_unless_lines_are_allowed() -> None:
    assert plain("a\nb") == r"a\nb"
    assert plain("a\n\x1bb", lines=True) == "a\n\\x1bb"


def test_colors_stay_and_end_with_the_line() -> None:
    assert colored("\x1b[1;31mred\x1b[0m") == "\x1b[1;31mred\x1b[0m"
    assert colored("\x1b[38;5;9mred") == "\x1b[38;5;9mred\x1b[0m"
    assert plain("\x1b[1mbold") == r"\x1b[1mbold"


SEQUENCES = ["\x1b[31m", "\x1b[", "\x1b", "\x1b]0;", "m", "31", "\x9b", "\r"]
PIECES = st.lists(st.sampled_from(SEQUENCES) | st.text(max_size=3))


@given(PIECES.map("".join))
def test_no_text_holds_a_control_sequence_other_than_a_color(text: str) -> None:
    forbidden = {"\x1b", "\r", "\n", "\x9b", "\u202e"}
    assert not forbidden & set(plain(text))
    assert not forbidden & set(re.sub(r"\x1b\[[0-9;:]*m", "", colored(text)))
