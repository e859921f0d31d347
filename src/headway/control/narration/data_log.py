"""The data log: the ranks' reports on their data pipelines, in ``data.jsonl``, and a warning if loops wait for data."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from headway.core import phrases
from headway.core.schema.data_stats import DatasetStats, DataStatsLine
from headway.storage.run.run_directory import RunDirectory

STARVED = 0.3  # share of the time since the last check that loops may spend waiting for data
LONG_ENOUGH_S = 4.0  # shortest time to judge by
AGAIN_S = 60.0  # time before the warning is repeated


class DataLog:
    """The data log; used only in the controller's thread."""

    def __init__(self, rundir: RunDirectory, tell: Callable[[str], None]) -> None:
        self._rundir = rundir
        self._tell = tell
        self._attempt = 0
        self._before: dict[tuple[int, str], DatasetStats] = {}
        self._said = -AGAIN_S

    def begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._before.clear()

    def heard(self, rank: int, text: bytes) -> None:
        figures = {name: DatasetStats.from_json(stats) for name, stats in json.loads(text).items()}
        self._rundir.append_data(DataStatsLine(attempt=self._attempt, rank=rank, datasets=figures))
        for name, now in figures.items():
            self._look(rank, name, now)

    def _look(self, rank: int, name: str, now: DatasetStats) -> None:
        before = self._before.get((rank, name))
        if before is None or now.elapsed_s < before.elapsed_s:
            self._before[rank, name] = now
            return
        elapsed, waited = now.elapsed_s - before.elapsed_s, now.waited_s - before.waited_s
        if elapsed < LONG_ENOUGH_S:
            return
        self._before[rank, name] = now
        if waited > STARVED * elapsed and now.batches > before.batches and time.monotonic() - self._said > AGAIN_S:
            self._said = time.monotonic()
            self._tell(
                f"{phrases.ranks([rank])} spends {waited / elapsed:.0%} of its time waiting for data "
                f"(dataset {name!r}): {_blamed(before, now)}"
            )


def _blamed(before: DatasetStats, now: DatasetStats) -> str:
    """Describe the operator that took the most time between the two samples."""
    spent = [
        (after.seconds - then.seconds, after.rows - then.rows, after.name)
        for then, after in zip(before.operators, now.operators, strict=False)
    ]
    seconds, rows, name = max(spent, default=(0.0, 0, "nothing"))
    rate = f", {rows / seconds:,.0f} rows/s" if seconds else ""
    return f"{name} takes the longest ({phrases.duration(seconds)}{rate})"
