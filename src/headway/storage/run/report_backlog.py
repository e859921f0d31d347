"""Backlogs: the newest reports of each rank, in case the driver is killed before it has read them.

    .staging/3.backlog-0.rank-1.jsonl    older reports of rank 1 in attempt 3
    .staging/3.backlog-1.rank-1.jsonl    newer ones; when it is full, the older file is replaced

The controller writes ``metrics.jsonl``. A report that is still in the socket when the driver is killed would be
missing there, although a later checkpoint of the same rank is kept and training resumes after it. The next opening
copies such reports from the backlog. A socket buffer holds far less than one file of the backlog.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from headway.core.schema.metrics_lines import AttemptLine, ReportLine, metrics_line, report_line
from headway.storage.fs_ops import open_to_append
from headway.storage.jsonl import Appender, JsonLines
from headway.storage.run import journal, layout

FILE_BYTES = 4 << 20  # above this size the next report starts another file
_NAME = re.compile(r"\d+\.backlog-\d+\.rank-\d+\.jsonl")


class ReportBacklog:
    """The backlog of one rank. On a full disk the backlog is incomplete, but training continues."""

    def __init__(self, run: Path, attempt: int, rank: int) -> None:
        self._run = run
        self._attempt = attempt
        self._rank = rank
        self._fd = -1
        self._num_files = 0
        self._size = 0

    def add(self, seq: int, time: float, metrics: bytes) -> None:
        """Append a report, without flushing: the backlog survives the death of the driver, not of the machine."""
        line = report_line(self._attempt, self._rank, seq, time, metrics)
        with contextlib.suppress(OSError):
            if self._fd < 0 or self._size > FILE_BYTES:
                self._begin_file()
            self._size += os.write(self._fd, line)

    def _begin_file(self) -> None:
        self.close()
        name = f"{self._attempt}.backlog-{self._num_files % 2}.rank-{self._rank}.jsonl"
        folder = layout.staging(self._run)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._fd = open_to_append(folder / name)
        os.ftruncate(self._fd, 0)
        self._num_files += 1
        self._size = 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def restore(run: Path, newest_seq: int) -> int:
    """Append reports to ``metrics.jsonl`` that it lacks and that a kept checkpoint covers.

    Args:
        run: A run's directory, whose lock is held.
        newest_seq: The report of the newest checkpoint. Later reports will be repeated.

    Returns:
        The number of missing reports.
    """
    found = {(line.seq, line.rank): line for line in _lines(run) if line.seq <= newest_seq}
    if not found:
        return 0
    present = _present(run, from_seq=min(seq for seq, _ in found))
    missing = [found[place] for place in sorted(found.keys() - present)]
    if missing:
        metrics = Appender(run / layout.METRICS)
        metrics.write(b"".join(map(_line_of, missing)))
        metrics.close()
    return len(missing)


def _line_of(report: ReportLine) -> bytes:
    metrics = json.dumps(report.metrics, separators=(",", ":")).encode()
    return report_line(report.attempt or 0, report.rank, report.seq, report.time or 0.0, metrics)


def _lines(run: Path) -> Iterator[ReportLine]:
    folder = layout.staging(run)
    paths = [path for path in folder.glob("*.backlog-*.jsonl") if _NAME.fullmatch(path.name) and not path.is_symlink()]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
        yield from (line for line in JsonLines(path, metrics_line).lines() if isinstance(line, ReportLine))


def _present(run: Path, from_seq: int) -> set[tuple[int, int]]:
    """The (report, rank) pairs in the metrics, from this report on."""
    present: set[tuple[int, int]] = set()
    for line in journal.metrics(run).lines():
        match line:
            case AttemptLine(first_seq=first_seq):
                present = {place for place in present if place[0] < first_seq}
            case ReportLine(rank=rank, seq=seq) if seq >= from_seq:
                present.add((seq, rank))
    return present
