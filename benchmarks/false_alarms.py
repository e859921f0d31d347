"""Is anything called a stall that is none? Ranks are silent for long, each for a good reason. Real clocks.

    python benchmarks/false_alarms.py [--minutes 30] [--work-s 12] [--cases "thread pool,suspended"]

Each case is a run of its own in which rank 0, and in every other round rank 1 too, is silent for ``--work-s`` at a time
while the others wait for it. Not one alarm is allowed.
"""

from __future__ import annotations

import argparse
import shutil
import sys

from common import publish

from scenarios.false_alarms import CASES, observe


def main() -> int:
    parser = argparse.ArgumentParser(description="Is anything called a stall that is none?")
    parser.add_argument("--minutes", type=float, default=30, help="in all")
    parser.add_argument("--work-s", type=float, default=12, help="how long a rank is silent at a time")
    parser.add_argument("--cases", default=",".join(CASES), help="which ones")
    args = parser.parse_args()
    names = [name.strip() for name in args.cases.split(",")]
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        names = [name for name in names if name != "torch.compile"]
        print("torch.compile is left out: there is no C++ compiler here", file=sys.stderr)
    found = []
    for name in names:
        found.append(observe(name, 60 * args.minutes / len(names), args.work_s))
        print(found[-1], file=sys.stderr, flush=True)
    claims = {
        "no alarm": not any(each["alarms"] for each in found),
        "every case has worked": all(each["ended"] is True and each["rounds"] > 0 for each in found),
    }
    return publish("false_alarms", {"minutes": args.minutes, "work_s": args.work_s, "cases": found}, claims)


if __name__ == "__main__":
    sys.exit(main())
