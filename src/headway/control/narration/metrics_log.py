"""The metrics log: every report, appended to ``metrics.jsonl`` once per batch of events."""

from __future__ import annotations

from headway.core.messages import Report
from headway.core.schema.metrics_lines import attempt_line, report_line
from headway.storage.run.run_directory import RunDirectory


class MetricsLog:
    """The metrics log; used only in the controller's thread."""

    def __init__(self, rundir: RunDirectory) -> None:
        self._rundir = rundir
        self._lines: list[bytes] = []
        self.newest: Report | None = None  # the last report of rank 0
        self.num_reports = 0  # reports of rank 0, including those repeated after a restart

    def begin_attempt(self, attempt: int, first_seq: int) -> None:
        """Mark the start of an attempt: readers drop reports of earlier attempts from ``first_seq`` on."""
        self._lines.append(attempt_line(attempt, first_seq))

    def record(self, attempt: int, rank: int, report: Report) -> None:
        if rank == 0:
            self.newest = report
            self.num_reports += 1
        self._lines.append(report_line(attempt, rank, report.seq, report.time, report.metrics))

    def flush(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, []
            self._rundir.record(b"".join(lines))
