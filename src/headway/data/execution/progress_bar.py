"""A progress bar for long operations on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from headway.data.context import DataContext

PATIENCE_S = 1.5  # seconds before a bar is shown

T = TypeVar("T")


def shown(
    items: Iterator[T], what: str, total: int | None, weight: Callable[[Any], int], context: DataContext
) -> Iterator[T]:
    """Yield the items; show a progress bar if they take longer than ``PATIENCE_S``."""
    if not context.enable_progress_bars or not sys.stderr.isatty():
        yield from items
        return
    began, done = time.monotonic(), 0
    bar: Any = None
    try:
        for item in items:
            done += weight(item)
            if bar is None and time.monotonic() - began > PATIENCE_S:
                bar = _bar(what, total)
            if bar is not None:
                bar.update(0, completed=done)
            yield item
    finally:
        if bar is not None:
            bar.stop()


def _bar(what: str, total: int | None) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(what, total=total)
    bar.start()
    return bar
