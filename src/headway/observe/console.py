"""The console of a run in the driver: its events, its workers' output with ranks, and a live status line.

A terminal shows workers' lines as they arrive, each with its rank, and below them one live line (drawn by rich) with
state and progress. Other outputs (a file, a pipe, a notebook) receive the same lines without the live line. Events are
records of the logger ``headway.run``, which :mod:`headway.observe.log_handler` writes to stderr. Workers' lines are
written to the same stream (stdout or stderr) as in the worker.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core import phrases
from headway.observe import log_handler
from headway.observe.log_tail import Line, Tail
from headway.observe.run_observer import RunSnapshot
from headway.observe.terminal_text import colored, plain, write_line
from headway.storage.run import layout

if TYPE_CHECKING:
    from headway.observe.status_line import LiveLine

TICK_S = 0.1

_logger = logging.getLogger("headway.run")
_open: list[Console] = []  # consoles of the active runs in this process


class Console:
    """Shows one run while it is active.

    Args:
        run: The run directory.
        log_level: Events below this level are not logged. ``ERROR`` also hides workers' output.
        show_output: Whether to show workers' output and the live line.
    """

    def __init__(self, run: Path, log_level: str = "INFO", *, show_output: bool = True) -> None:
        self._run = run
        self._level = log_handler.number(log_level)
        self._show_output = show_output and self._level < logging.ERROR
        self._tails: dict[tuple[int, str], Tail] = {}
        self._next_look = 0.0
        self._wants_line = show_output and self._level <= logging.INFO
        self._live: LiveLine | None = None
        self._began = time.monotonic()
        self._is_shared = False  # whether another run was active at the same time; if so, each line names its run

    @property
    def _label(self) -> str:
        return f"{plain(self._run.name)} " if self._is_shared else ""

    def __enter__(self) -> Console:
        _open.append(self)
        if len(_open) > 1:
            for console in tuple(_open):
                console._is_shared = True
        self._live = _live_line() if self._wants_line else None
        return self

    def __exit__(self, *exc: object) -> None:
        """Show the remaining lines and remove the live line."""
        _open.remove(self)
        self._show_last_lines()
        self._tails = {}
        if self._live is not None:
            self._live.close()
            self._live = None

    def say(self, text: str, *, level: str = "INFO") -> None:
        """Log an event of the run."""
        number = log_handler.number(level)
        if number >= self._level and _logger.isEnabledFor(number):
            self._show_lines()
            label = f"[{self._run.name}] " if self._is_shared else ""
            _logger.log(number, "%s", plain(label + text, lines=True), extra={"run": self._run.name})

    def follow(self, num_workers: int) -> None:
        """Show everything that these workers write from now on."""
        self._show_last_lines()
        if self._show_output:
            keys = [(rank, stream) for rank in range(num_workers) for stream in ("out", "err")]
            self._tails = {(rank, stream): Tail(layout.log(self._run, rank, stream)) for rank, stream in keys}

    def tick(self, snapshot: RunSnapshot) -> float | None:
        """Show new output a few times per second; return the seconds until the next update."""
        wait = self._next_look - time.monotonic()
        if wait > 0:
            return wait
        self._show_lines()
        if self._live is not None:
            bars = [
                f"[{self._label}r{rank}] {plain(tail.partial)}"
                for (rank, _), tail in self._tails.items()
                if tail.partial
            ]
            with contextlib.suppress(OSError, ValueError):
                self._live.show(self._status(snapshot), bars[:4])
        self._next_look = time.monotonic() + TICK_S
        return TICK_S if self._tails or self._live else None

    def _status(self, snapshot: RunSnapshot) -> str:
        seconds = time.monotonic() - self._began
        parts = [
            snapshot.state,
            phrases.count(snapshot.num_workers, "worker"),
            phrases.count(snapshot.num_reports, "report"),
        ]
        if snapshot.attempt > 1:
            parts.insert(1, f"attempt {snapshot.attempt}")
        if snapshot.newest is not None:
            parts.append(phrases.metrics(json.loads(snapshot.newest.metrics)))
            parts.append(f"{snapshot.num_reports / seconds:.3g} reports/s")
        if self._is_shared:
            parts.insert(0, self._run.name)
        return plain(" · ".join([*parts, phrases.duration(seconds)]))

    def _show_lines(self) -> None:
        for (rank, stream), tail in self._tails.items():
            for text in tail.lines():
                self._show(Line(rank, stream, text))

    def _show_last_lines(self) -> None:
        for (rank, stream), tail in self._tails.items():
            for text in tail.last():
                self._show(Line(rank, stream, text))

    def _show(self, line: Line) -> None:
        text = f"[{self._label}r{line.rank}] {colored(line.text)}"
        write_line(text, sys.stdout if line.stream == "out" else sys.stderr)


def _live_line() -> LiveLine | None:
    """Make a live line if stderr is a terminal that supports it, otherwise None. rich is imported only if needed."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    from headway.observe.status_line import LiveLine

    return LiveLine.on_terminal()
