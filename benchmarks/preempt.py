"""Is anything lost when workers, or the whole program, are told to leave?

    python benchmarks/preempt.py [--times 100] [--seed 0]

SIGTERM comes at a random moment, one half of the times to one of the two workers, the other half to the program. In
both cases all ranks must save in one report that they agree on, and leave. A program that lost a worker goes on by
itself; one that was told to leave ends with PreemptionError, and goes on when it is started again. No report may be
done twice or not at all, and the losses must be, bit for bit, those of a run that was left alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common import median, publish

from scenarios.preempt import Whom, run_with_preemptions


def summary(seconds: Sequence[float]) -> dict[str, float | None]:
    return {"median": median(seconds), "longest": round(max(seconds), 3) if seconds else None}


def main() -> int:
    parser = argparse.ArgumentParser(description="Is anything lost when workers, or the program, are told to leave?")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="preempt-", ignore_cleanup_errors=True) as folder:
        told: dict[Whom, int] = {"a worker": args.times // 2, "the program": args.times - args.times // 2}
        found = run_with_preemptions(Path(folder), told, args.seed)
    result = {
        "told to leave": found.told,
        "the last report of every rank was committed": found.committed,
        "reports done twice": found.lost,
        "reports never done": found.skipped,
        "attempts that nobody asked for": found.other_attempts,
        "losses compared": found.comparison.compared,
        "losses that differ": found.comparison.different,
        "reports missing": found.comparison.missing,
        "hangs": found.hangs,
        "trouble": found.trouble,
        "seconds until new workers train": summary(found.seconds["a worker"]),
        "seconds until the program has left": summary(found.seconds["the program"]),
    }
    claims: dict[str, bool | None] = {
        "every time a checkpoint at the agreed report": found.committed == args.times,
        "no step is lost": not found.lost and not found.skipped,
        "every loss is that of a run which was left alone, bit for bit": found.comparison.equal,
        "it always goes on, or says why it left": not found.trouble and not found.other_attempts,
    }
    return publish("preempt", result, claims)


if __name__ == "__main__":
    sys.exit(main())
