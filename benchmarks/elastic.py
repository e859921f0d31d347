"""Fewer workers, and more again: is every sample seen once, and how soon do steps go on?

    python benchmarks/elastic.py [--rounds 3]

A tracked training on one to three workers while the engine's capacity goes 3 → 1 → 3, in the middle of an epoch. Every
step reports the rows that it has trained on; a change is answered when a step has ended with the new number of workers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

from common import at_most, median, publish

from scenarios.elastic import elastic_run, is_exact


def main() -> int:
    parser = argparse.ArgumentParser(description="Fewer workers, and more again.")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    took: list[float] = []
    exact = []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            run, seconds = elastic_run(folder, {10: 1, 60: 3})
            took += seconds
            exact.append(is_exact(run))
    result = {
        "seconds from a change of capacity to a step with the new number of workers": [round(s, 3) for s in took],
        "median": median(took),
        "every sample once per epoch": exact,
    }
    claims = {
        "steps resume within a second of each change": len(took) == 2 * args.rounds and at_most(1.0, max(took)),
        "every sample exactly once per epoch": all(exact),
    }
    return publish("elastic", result, claims)


if __name__ == "__main__":
    sys.exit(main())
