"""Two tracked loaders: is a run that is killed at random, again and again, bit for bit the one that was not?

    python benchmarks/loaders.py [--runs 20] [--workers 1 2] [--seed 0]

For each shape of loop (see ``programs/two_loaders.py``) one quiet run, and so many with three kills each, at any place
of the loops.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import PROGRAMS, publish

from headway.core.schema.journal_entries import LaunchEntry
from headway.storage.run.reader import RunReader

sys.path.insert(0, str(PROGRAMS))

from two_loaders import SHAPES, fit  # type: ignore[import-not-found]  # isort: skip


def reports(path: Path, num_workers: int) -> list[list[dict[str, Any]]]:
    """What counts in the end, rank by rank."""
    return [[row.metrics for row in RunReader.at(path).reports(rank)] for rank in range(num_workers)]


def resumed(path: Path) -> int:
    """How many attempts have begun with a checkpoint."""
    return sum(1 for entry in RunReader.at(path).journal.lines() if isinstance(entry, LaunchEntry) and entry.first_seq)


def torment(folder: Path, shape: str, num_workers: int, runs: int, chance: random.Random) -> dict[str, Any]:
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for num_workers in options.workers:
            for shape in options.shapes:
                name = f"{shape}, {num_workers} worker{'s' * (num_workers > 1)}"
                chance = random.Random(f"{options.seed}:{name}")
                found[name] = torment(Path(folder, name.replace(" ", "-")), shape, num_workers, options.runs, chance)
    claims: dict[str, bool | None] = {
        "every killed run is bit-equal": not any(each["different"] for each in found.values()),
        "kills were survived by resuming": all(each["resumed"] for each in found.values()),
    }
    return publish("loaders", {"shapes": found}, claims)


if __name__ == "__main__":
    sys.exit(main())
