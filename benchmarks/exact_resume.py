"""Does a tracked run that is killed end exactly like one that is not? Every loss, and every bit of the final weights.

    python benchmarks/exact_resume.py [--runs 20] [--programs ddp3 ddp4 …] [--seed 0]

Each program runs once undisturbed, then ``--runs`` times with one to three workers killed at random moments. Losses are
compared for every report of every rank and attempt, also for those that were made twice. Programs with two loaders:
``loaders.py``.
"""

from __future__ import annotations

import argparse
import sys

from common import publish

from scenarios.exact_resume import PROGRAMS, examine


def main() -> int:
    parser = argparse.ArgumentParser(description="Does a tracked run that is killed end like one that is not?")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = {}
    for name in args.programs:
        found[name] = examine(PROGRAMS[name], args.runs, args.seed)
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    claims: dict[str, bool | None] = {f"{name}: equal to the last bit": each.exact for name, each in found.items()}
    return publish("exact_resume", {"programs": {name: vars(each) for name, each in found.items()}}, claims)


if __name__ == "__main__":
    sys.exit(main())
