"""Text that cannot do anything to a terminal but appear on it.

What workers print, metrics, and whatever a run directory says, may hold escape sequences that clear the screen, set its
title or fill the clipboard, carriage returns that overwrite what was said, and marks that turn text around.
"""

from __future__ import annotations

import re

from headway.core.security.printable_text import plain as plain

_RESET = "\x1b[0m"
_COLOR = re.compile(r"(\x1b\[[0-9;:]*m)")


def colored(line: str) -> str:
    """The same as :func:`plain`, but colors stay; they end with the line.

    >>> colored("\\x1b[32mgreen\\x1b]0;title\\x07")
    '\\x1b[32mgreen\\\\x1b]0;title\\\\x07\\x1b[0m'
    """
    if "\x1b" not in line:
        return plain(line)
    parts = _COLOR.split(line)
    shown = "".join(part if index % 2 else plain(part) for index, part in enumerate(parts))
    return shown if len(parts) == 1 or shown.endswith(_RESET) else shown + _RESET
