"""What a person sees of a run while it runs.

On a terminal: workers' lines as they come, each with its rank, and below them one live line (drawn by rich) that
never tears them. Elsewhere (a file, a pipe, a notebook): the same lines and plain sentences. Headway's own words go
to stderr, the workers' to where they wrote them.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from headway.core import phrases
from headway.core.config import LEVELS
from headway.observe.log_tail import Line, Tail
from headway.observe.run_observer import RunSnapshot
from headway.observe.terminal import colored, plain
from headway.storage.run import layout

TICK_S = 0.1

_open: list[Console] = []  # those of the runs that are going on in this process


class Console:
    def __init__(self, run: Path, log_level: str = "INFO", *, show_output: bool = True) -> None:
        self._run = run
        self._level = LEVELS.index(log_level)
        self._show_output = show_output and log_level != "ERROR"
        self._tails: dict[tuple[int, str], Tail] = {}
        self._next_look = 0.0
        self._wants_line = show_output and self._level <= LEVELS.index("INFO")
        self._live: Any = None
        self._began = time.monotonic()
        self._shares = False  # whether another run has been going on beside this one: then each line says whose it is

    @property
    def _whose(self) -> str:
        return f"{plain(self._run.name)} " if self._shares else ""

    def __enter__(self) -> Console:
        _open.append(self)
        if len(_open) > 1:
            for console in tuple(_open):
                console._shares = True
        self._live = _live_line() if self._wants_line else None
        return self

    def __exit__(self, *exc: object) -> None:
        """Show the rest and give the screen back."""
        _open.remove(self)
        self._show_last_lines()
        self._tails = {}
        if self._live is not None:
            self._live.close()
            self._live = None

    def say(self, text: str, *, level: str = "INFO") -> None:
        """A sentence of our own."""
        if LEVELS.index(level) >= self._level:
            self._show_lines()
            whose = f"[{self._run.name}] " if self._shares else ""
            self._print(plain(f"headway: {whose}{text}", lines=True), sys.stderr)

    def follow(self, num_workers: int) -> None:
        """Show what these workers write from now on."""
        self._show_last_lines()
        if self._show_output:
            keys = [(rank, stream) for rank in range(num_workers) for stream in ("out", "err")]
            self._tails = {(rank, stream): Tail(layout.log(self._run, rank, stream)) for rank, stream in keys}

    def tick(self, glance: RunSnapshot) -> float | None:
        """Show what is new, a few times a second; how long until the next look."""
        wait = self._next_look - time.monotonic()
        if wait > 0:
            return wait
        self._show_lines()
        if self._live is not None:
            bars = [
                f"[{self._whose}r{rank}] {plain(tail.partial)}"
                for (rank, _), tail in self._tails.items()
                if tail.partial
            ]
            with contextlib.suppress(OSError, ValueError):
                self._live.show(self._status(glance), bars[:4])
        self._next_look = time.monotonic() + TICK_S
        return TICK_S if self._tails or self._live else None

    def _status(self, glance: RunSnapshot) -> str:
        seconds = time.monotonic() - self._began
        parts = [glance.state, phrases.count(glance.num_workers, "worker"), phrases.count(glance.num_reports, "report")]
        if glance.attempt > 1:
            parts.insert(1, f"attempt {glance.attempt}")
        if glance.newest is not None:
            parts.append(phrases.metrics(json.loads(glance.newest.metrics)))
            parts.append(f"{glance.num_reports / seconds:.3g} reports/s")
        if self._shares:
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
        self._print(
            f"[{self._whose}r{line.rank}] {colored(line.text)}", sys.stdout if line.stream == "out" else sys.stderr
        )

    def _print(self, text: str, stream: Any) -> None:
        """A line; a screen that has gone away (a closed pipe, say) costs us the line and not the run."""
        encoding = getattr(stream, "encoding", None) or "utf-8"
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        with contextlib.suppress(OSError, ValueError):
            if self._live is not None and self._live.owns(stream):
                self._live.print(text)
            else:
                print(text, file=stream, flush=True)


def _live_line() -> Any:
    """A live line where stderr is a terminal that can do it, else None. Only then is rich imported."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    from headway.observe.status_line import LiveLine

    return LiveLine.on_terminal()
