"""Text for a terminal: escape sequences made visible, and lines written above the live status lines.

Worker output, metrics, and the contents of a run directory may contain escape sequences that clear the screen, set its
title or fill the clipboard, carriage returns that overwrite earlier text, and bidirectional marks that reverse text.
"""

from __future__ import annotations

import contextlib
import re
from typing import Protocol, TextIO

from headway.core.security.printable_text import plain as plain

_RESET = "\x1b[0m"
_COLOR = re.compile(r"(\x1b\[[0-9;:]*m)")


def colored(line: str) -> str:
    """Like :func:`plain`, but colors are kept and reset at the end of the line.

    >>> colored("\\x1b[32mgreen\\x1b]0;title\\x07")
    '\\x1b[32mgreen\\\\x1b]0;title\\\\x07\\x1b[0m'
    """
    if "\x1b" not in line:
        return plain(line)
    parts = _COLOR.split(line)
    shown = "".join(part if index % 2 else plain(part) for index, part in enumerate(parts))
    return shown if len(parts) == 1 or shown.endswith(_RESET) else shown + _RESET


class LiveScreen(Protocol):
    """A terminal whose last lines are redrawn in place."""

    def owns(self, stream: TextIO | None) -> bool:
        """Whether text for this stream appears on this screen."""

    def print(self, text: str) -> None:
        """Print a line above the live lines."""

    def clear(self) -> None:
        """Erase the live lines until they are next drawn."""


live_screens: list[LiveScreen] = []  # at most one; filled by observe.status_line


def write_line(text: str, stream: TextIO | None) -> None:
    """Write a line. If the stream (for example, a pipe) was closed, the line is lost and the run continues."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    with contextlib.suppress(OSError, ValueError):
        for screen in live_screens:
            if screen.owns(stream):
                return screen.print(text)
        print(text, file=stream, flush=True)


def clear_live_lines() -> None:
    """Erase the live lines before other code writes to the terminal."""
    with contextlib.suppress(OSError, ValueError):
        for screen in tuple(live_screens):
            screen.clear()
