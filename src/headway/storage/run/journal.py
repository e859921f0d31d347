"""The files of a run directory that grow by lines: the shapes of their lines, and how they are read.

events.jsonl    {"time": …, "event": "launched", "attempt": 1, …}
metrics.jsonl   {"rank": 0, "seq": 3, "attempt": 1, "time": …, "metrics": {…}}      a report
                {"attempt": 2, "first_seq": 3}                                       a later attempt continues from here

A line that was damaged (a lost page after a power cut, another program) is left out, and the rest is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.core.schema.shape import COUNT, NUMBER, Range, conform
from headway.storage.fs_ops import Check, DamagedLine, read_lines, read_lines_backwards, scan_lines
from headway.storage.run import layout

_TEXT = frozenset({str, None})
_NUMBER = Range(-1, 1 << 62)  # of a report or an attempt
_EVENT = {"event": str, "time": NUMBER, "?attempt": _NUMBER, "?state": str, "?text": str, "?cause": _TEXT}
_OF_KIND = {
    "launched": {"attempt": _NUMBER, "num_workers": COUNT, "first_seq": _NUMBER},
    "retry": {"attempt": _NUMBER, "cause": str, "after_s": NUMBER, "checkpoint": _TEXT},
    "end": {"attempt": _NUMBER, "state": str},
    "stall": {"text": str},
    "retired": {"path": str, "seq": _NUMBER, "why": str},
    "removed": {"path": str, "seq": _NUMBER, "why": str},
}
_REPORT = {"rank": COUNT, "seq": _NUMBER, "metrics": dict}
_BEGIN = {"first_seq": _NUMBER}


def check_event(line: Any) -> None:
    """Raise ShapeError for what is not a line of the journal."""
    conform(line, _EVENT)
    conform(line, _OF_KIND.get(line["event"], {}))


def check_metrics(line: Any) -> None:
    """Raise ShapeError for what is not a line of the metrics. There may be millions of them: one look is enough."""
    if (
        type(line) is dict
        and type(line.get("metrics")) is dict
        and type(line.get("seq")) is type(line.get("rank")) is int
    ):
        return
    conform(line, dict)
    conform(line, _BEGIN if "first_seq" in line else _REPORT)


def report_line(attempt: int, rank: int, seq: int, time: float, metrics: bytes) -> bytes:
    """A line of ``metrics.jsonl``. ``metrics`` is JSON already."""
    return b'{"rank":%d,"seq":%d,"attempt":%d,"time":%.6f,"metrics":%s}\n' % (rank, seq, attempt, time, metrics)


def line_of(content: dict[str, Any]) -> bytes:
    """A line of any of these files."""
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def events(run: Path) -> Iterator[dict[str, Any]]:
    return read_lines(run / layout.JOURNAL, check_event)


def reports(run: Path) -> Iterator[dict[str, Any]]:
    """Reports, and where later attempts begin."""
    return read_lines(run / layout.METRICS, check_metrics)


def reports_backwards(run: Path) -> Iterator[dict[str, Any]]:
    return read_lines_backwards(run / layout.METRICS, check_metrics)


def damage(run: Path) -> Iterator[str]:
    """What cannot be read of the journal, in words."""
    yield from _damage(run / layout.JOURNAL, check_event)


def metrics_damage(run: Path) -> Iterator[str]:
    """The same of the metrics, all of which are read for it."""
    yield from _damage(run / layout.METRICS, check_metrics)


def _damage(path: Path, check: Check) -> Iterator[str]:
    if count := sum(isinstance(line, DamagedLine) for line in scan_lines(path, check)):
        yield f"{path.name}: {count:,} damaged line{'s are' if count > 1 else ' is'} left out"
