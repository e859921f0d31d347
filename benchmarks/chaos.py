"""Can a training be brought down, or off its course? One run suffers faults of every sort, at any moment.

    python benchmarks/chaos.py [--faults 200] [--seed 0]

Two workers, DDP, tracked state, a checkpoint every five reports. Workers are killed, stopped for a while, made to
raise and to exit, killed in the middle of a save, and killed together with the process that they are forked from. In
the end every loss that was ever reported must be, bit for bit, that of a run which was left alone; it must never have
stood still; and nothing of it may be left, no process and no file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from common import publish

from scenarios.chaos import run_with_faults


def main() -> int:
    parser = argparse.ArgumentParser(description="Can a training be brought down, or off its course?")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
        found = run_with_faults(Path(folder), args.faults, args.seed)
    result = {
        "faults": dict(sorted(found.faults.items())),
        "attempts": found.attempts,
        "half checkpoints dropped": found.halves,
        "losses compared": found.comparison.compared,
        "losses that differ": found.comparison.different,
        "reports missing": found.comparison.missing,
        "hangs": found.hangs,
        "trouble": found.trouble,
        "orphans": found.orphans,
        "files left": found.litter,
        "seconds": round(time.monotonic() - began),
    }
    claims: dict[str, bool | None] = {
        "every loss is that of a run without faults, bit for bit": found.comparison.equal,
        "it never stood still, and came to its end": not found.trouble,
        "no process is left": not found.orphans,
        "no file is left": not found.litter,
    }
    return publish("chaos", result, claims)


if __name__ == "__main__":
    sys.exit(main())
