"""The live line on a terminal, drawn by rich: status below, everything else scrolls above it untorn."""

from __future__ import annotations

import sys
from typing import Any

import rich.console
import rich.live
import rich.text


class LiveLine:
    def __init__(self, console: rich.console.Console) -> None:
        self._console = console
        self._stdout_is_terminal = sys.stdout.isatty()
        # What the user's own code prints in this process meanwhile goes above the line, too.
        self._live = rich.live.Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=self._stdout_is_terminal,
            redirect_stderr=True,
        )
        self._streams = (sys.stdout, sys.stderr)
        self._live.start()

    @classmethod
    def on_terminal(cls) -> LiveLine | None:
        console = rich.console.Console(stderr=True)
        return cls(console) if console.is_terminal and not console.is_dumb_terminal else None

    def owns(self, stream: Any) -> bool:
        """Whether text for this stream lands on the screen that we draw on."""
        return stream is sys.stderr or self._stdout_is_terminal

    def print(self, text: str) -> None:
        self._console.print(rich.text.Text.from_ansi(text), soft_wrap=True, highlight=False)

    def show(self, status: str, bars: list[str]) -> None:
        """One line each, cut to the width of the screen."""
        lines = [rich.text.Text(line, no_wrap=True, overflow="ellipsis") for line in (*bars, status)]
        lines[-1].stylize("bold cyan")
        self._live.update(rich.console.Group(*lines), refresh=True)

    def close(self) -> None:
        self._live.stop()
