"""Two tracked loaders, in loops of several shapes: killed runs are compared with an undisturbed one."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from headway.core.schema.journal_entries import LaunchEntry
from headway.storage.run.reader import RunReader

sys.path.insert(0, str(Path(__file__).parent / "programs"))

from two_loaders import SHAPES as SHAPES, fit  # type: ignore[import-not-found]  # isort: skip


def reports(path: Path, num_workers: int) -> list[list[dict[str, Any]]]:
    """The final reports of each rank."""
    return [[row.metrics for row in RunReader.at(path).reports(rank)] for rank in range(num_workers)]


def resumed(path: Path) -> int:
    """The number of attempts that resumed from a checkpoint."""
    return sum(1 for entry in RunReader.at(path).journal.lines() if isinstance(entry, LaunchEntry) and entry.first_seq)


def compare_killed_runs(folder: Path, shape: str, num_workers: int, runs: int, chance: random.Random) -> dict[str, Any]:
    quiet = folder / "quiet"
    quiet.mkdir(parents=True)
    expected = reports(fit(quiet, shape, num_workers), num_workers)
    num_ticks = (quiet / "ticks").stat().st_size
    different, times_resumed = [], 0
    for number in range(runs):
        deaths = sorted(chance.sample(range(2, num_ticks + num_ticks // 4), 3))
        killed = folder / f"killed-{number}"
        killed.mkdir()
        path = fit(killed, shape, num_workers, deaths, every_reports=chance.choice((1, 1, 2, 5)))
        times_resumed += resumed(path)
        if reports(path, num_workers) != expected:
            different.append(deaths)
    return {"runs": runs, "resumed": times_resumed, "different": different}
