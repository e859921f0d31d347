"""Text that cannot do anything to a terminal but appear on it.

What workers print, metrics, and whatever a run directory says, may hold escape sequences that clear the screen, set its
title or fill the clipboard, carriage returns that overwrite what was said, and marks that turn text around.
"""

from __future__ import annotations

import re
import unicodedata

_RESET = "\x1b[0m"
_COLOR = re.compile(r"(\x1b\[[0-9;:]*m)")
_SUSPECT = re.compile(r"[^\x20-\x7e\xa0-\xac\xae-\u0600]")  # whatever needs a closer look
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # controls, formats (bidirectional marks among them), surrogates, separators
_HARMLESS = "\t\u200c\u200d"  # joiners belong to scripts and to emoji


def plain(text: str, *, lines: bool = False) -> str:
    """Every control character as an escape that can be read. ``lines``: it may have several lines.

    >>> plain("loss \\x1b[2J\\rfake")
    'loss \\\\x1b[2J\\\\rfake'
    """
    if text.isascii() and text.isprintable():
        return text
    if lines:
        return "\n".join(plain(line) for line in text.split("\n"))
    return _SUSPECT.sub(_escaped, text)


def colored(line: str) -> str:
    """The same, but colors stay; they end with the line.

    >>> colored("\\x1b[32mgreen\\x1b]0;title\\x07")
    '\\x1b[32mgreen\\\\x1b]0;title\\\\x07\\x1b[0m'
    """
    if "\x1b" not in line:
        return plain(line)
    parts = _COLOR.split(line)
    shown = "".join(part if index % 2 else plain(part) for index, part in enumerate(parts))
    return shown if len(parts) == 1 or shown.endswith(_RESET) else shown + _RESET


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character in _HARMLESS or unicodedata.category(character) not in _HIDDEN:
        return character
    return repr(character)[1:-1]
