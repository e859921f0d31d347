"""Does a pipeline keep to its budget? Four gigabytes of rows, half a gigabyte of memory.

    python benchmarks/data_memory.py [--gib 4] [--budget-mib 512]

One worker reads all rows once, with the budget and with as much memory as it likes, in turns. Its own memory (USS) is
looked at all the time after its first batch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from typing import Any

from common import at_least, at_most, median, program, publish, ratio, run

sys.path.insert(0, str(__import__("pathlib").Path(__file__).parent / "programs"))

import ingest_rows

ALLOWANCE_MIB = 100


def main() -> int:
    parser = argparse.ArgumentParser(description="Does a pipeline keep to its budget?")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--budget-mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    rows = int(args.gib * 2**30 / (128 * 128 * 3) / 16) * 16
    found: dict[str, dict[str, list[float]]] = {"bounded": {}, "unbounded": {}}
    with tempfile.TemporaryDirectory() as folder:
        ingest_rows.write_rows(folder, rows, files=16, group=200, shape=(128, 128, 3))
        for _ in range(args.rounds):
            for name, budget in (("unbounded", 1 << 40), ("bounded", args.budget_mib << 20)):
                _, marks, said = run([sys.executable, program("data_memory"), folder, str(budget)], 400)
                if "rows_per_s" not in marks:
                    print(said[-3000:], file=sys.stderr)
                for key, values in marks.items():
                    found[name].setdefault(key, []).extend(values)
    bounded, unbounded = found["bounded"], found["unbounded"]
    speed = ratio(median(bounded.get("rows_per_s", [])), median(unbounded.get("rows_per_s", [])))
    growth = max(bounded.get("growth_mib", []), default=None)
    result: dict[str, Any] = {
        "rows": rows,
        "GiB of rows": args.gib,
        "budget in MiB": args.budget_mib,
        "USS growth after the first batch, in MiB (most)": growth,
        "the same without a bound": max(unbounded.get("growth_mib", []), default=None),
        "rows/s (median)": {name: median(each.get("rows_per_s", [])) for name, each in found.items()},
        "speed bounded / unbounded": speed,
    }
    claims = {
        "growth <= budget + 100 MiB": at_most(args.budget_mib + ALLOWANCE_MIB, growth),
        "speed >= 0.8 x unbounded": at_least(0.8, speed),
    }
    return publish("data_memory", result, claims)


if __name__ == "__main__":
    sys.exit(main())
