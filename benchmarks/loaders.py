"""Two tracked loaders: is a run that is killed at random, again and again, bit for bit the one that was not?

    python benchmarks/loaders.py [--runs 20] [--workers 1 2] [--seed 0]

For each shape of loop (see ``tests/scenarios/programs/two_loaders.py``) one quiet run, and so many with three
kills each, at any place of the loops.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import publish

from scenarios.loaders import SHAPES, compare_killed_runs


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
                found[name] = compare_killed_runs(
                    Path(folder, name.replace(" ", "-")), shape, num_workers, options.runs, chance
                )
    claims: dict[str, bool | None] = {
        "every killed run is bit-equal": not any(each["different"] for each in found.values()),
        "kills were survived by resuming": all(each["resumed"] for each in found.values()),
    }
    return publish("loaders", {"shapes": found}, claims)


if __name__ == "__main__":
    sys.exit(main())
