"""The live line on a terminal, drawn by rich: status below, everything else scrolls above it untorn.

There is one screen however many runs a program has: each run has a line of its own on it.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import rich.console
import rich.live
import rich.text


class _Console(rich.console.Console):
    """Prints for one thread at a time.

    A line is printed by going up over the live lines first: as many as there were when that was decided. Where another
    thread draws more or fewer of them in between, a line that had been printed is erased.
    """

    def print(self, *args: Any, **kwargs: Any) -> None:
        with _changing:
            super().print(*args, **kwargs)


class LiveLine:
    """The lines of one run on the screen."""

    def __init__(self, screen: _Screen) -> None:
        self._screen = screen

    @classmethod
    def on_terminal(cls) -> LiveLine | None:
        with _changing:
            screen = _screens[0] if _screens else None
            if screen is None:
                console = _Console(stderr=True)
                if not console.is_terminal or console.is_dumb_terminal:
                    return None
                screen = _Screen(console)
                _screens.append(screen)
            line = cls(screen)
            screen.lines[line] = []
            return line

    def owns(self, stream: Any) -> bool:
        """Whether text for this stream lands on the screen that we draw on."""
        return stream is sys.stderr or self._screen.stdout_is_terminal

    def print(self, text: str) -> None:
        self._screen.print(text)

    def show(self, status: str, bars: list[str]) -> None:
        """One line each, cut to the width of the screen."""
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
                self._screen.close()


class _Screen:
    def __init__(self, console: rich.console.Console) -> None:
        self.stdout_is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self.lines: dict[LiveLine, list[rich.text.Text]] = {}  # of each run
        self._console = console
        # What the user's own code prints in this process meanwhile goes above the line, too.
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

    def draw(self) -> None:
        self._live.update(rich.console.Group(*(line for lines in self.lines.values() for line in lines)), refresh=True)

    def close(self) -> None:
        self._live.stop()


_screens: list[_Screen] = []  # the one that there is, if there is one
_changing = threading.RLock()
