"""Text with control characters escaped, so that printing it cannot control a terminal."""

from __future__ import annotations

import re
import unicodedata

_SUSPECT = re.compile(r"[^\x20-\x7e\xa0-\xac\xae-\u0600]")  # characters to check
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # controls, formats (including bidirectional marks), surrogates, separators
_HARMLESS = "\t\u200c\u200d"  # some scripts and emoji need joiners


def plain(text: str, *, lines: bool = False) -> str:
    """Replace control characters with readable escapes. ``lines``: keep line breaks.

    >>> plain("loss \\x1b[2J\\rfake")
    'loss \\\\x1b[2J\\\\rfake'
    """
    if text.isascii() and text.isprintable():
        return text
    if lines:
        return "\n".join(plain(line) for line in text.split("\n"))
    return _SUSPECT.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character in _HARMLESS or unicodedata.category(character) not in _HIDDEN:
        return character
    return repr(character)[1:-1]
