"""The live status line on a terminal, drawn by rich; all other output scrolls above it.

A program has one screen, and each of its runs has a status line on it.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, TextIO

import rich.console
import rich.live
import rich.text

from headway.observe.terminal_text import live_screens


class _Console(rich.console.Console):
    """Prints for one thread at a time.

    To print a line, rich first moves the cursor up by the number of live lines at the time of rendering. If another
    thread drew more or fewer live lines in between, a printed line would be erased.
    """

    def print(self, *args: Any, **kwargs: Any) -> None:
        with _changing:
            super().print(*args, **kwargs)


class LiveLine:
    """The live lines of one run on the screen."""

    def __init__(self, screen: _Screen) -> None:
        self._screen = screen

    @classmethod
    def on_terminal(cls) -> LiveLine | None:
        """Make a live line on this terminal, or return None if the terminal cannot move its cursor."""
        with _changing:
            screen = _screens[0] if _screens else None
            if screen is None:
                console = _Console(stderr=True)
                if not console.is_terminal or console.is_dumb_terminal:
                    return None
                screen = _Screen(console)
                _screens.append(screen)
                live_screens.append(screen)
            line = cls(screen)
            screen.lines[line] = []
            return line

    def show(self, status: str, bars: list[str]) -> None:
        """Draw the progress bars and the status, one line each, truncated to the width of the screen."""
        lines = [rich.text.Text(line, no_wrap=True, overflow="ellipsis") for line in (*bars, status)]
        lines[-1].stylize("bold cyan")
        with _changing:
            self._screen.lines[self] = lines
            self._screen.draw()

    def close(self) -> None:
        with _changing:
            del self._screen.lines[self]
            if self._screen.lines:
                self._screen.draw()
            else:
                _screens.remove(self._screen)
                live_screens.remove(self._screen)
                self._screen.close()


class _Screen:
    """The terminal (a :class:`~headway.observe.terminal_text.LiveScreen`)."""

    def __init__(self, console: rich.console.Console) -> None:
        self.stdout_is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self.lines: dict[LiveLine, list[rich.text.Text]] = {}
        self._console = console
        # Redirected, so that output of user code in this process also appears above the live lines.
        self._live = rich.live.Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=self.stdout_is_terminal,
            redirect_stderr=True,
        )
        self._live.start()

    def print(self, text: str) -> None:
        self._console.print(rich.text.Text.from_ansi(text), soft_wrap=True, highlight=False)

    def owns(self, stream: TextIO | None) -> bool:
        return stream is sys.stderr or self.stdout_is_terminal

    def clear(self) -> None:
        with _changing:
            self._live.update(rich.console.Group(), refresh=True)

    def draw(self) -> None:
        self._live.update(rich.console.Group(*(line for lines in self.lines.values() for line in lines)), refresh=True)

    def close(self) -> None:
        self._live.stop()


_screens: list[_Screen] = []  # at most one
_changing = threading.RLock()
