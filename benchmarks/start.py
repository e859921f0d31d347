"""How soon does training begin? Headway, torchrun and Ray Train side by side, two CPU workers, one DDP step.

    python benchmarks/start.py [--rounds 7] [--ray-rounds 2]

Measured from the start of the interpreter: to the first line of the user's function (the later of the two ranks), to
the end of the first DDP step, to the end of the process; and for Headway a second ``fit()`` in the same process. Ray
Train's program also runs as it is on Headway, ``headway run --as-ray``.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from typing import Any

from common import at_most, median, program, publish, ratio, run, torchrun

Rounds = list[dict[str, float]]


def main() -> int:
    parser = argparse.ArgumentParser(description="How soon does training begin?")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ray-rounds", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ours = [sys.executable, program("start_headway"), folder]
        theirs = torchrun(program("start_torchrun"))
        contest(ours, 60)  # once for the page cache
        found: dict[str, Rounds] = {"headway": [], "torchrun": [], "headway, torch imported first": []}
        for _ in range(args.rounds):
            found["headway"].append(contest(ours, 60))
            found["torchrun"].append(contest(theirs, 60, GLOO_SOCKET_IFNAME="lo"))
            found["headway, torch imported first"].append(contest([*ours, "torch-first"], 60))
        if importlib.util.find_spec("ray"):
            rays = [sys.executable, program("start_ray"), folder]
            found["ray train"] = [contest(rays, 180) for _ in range(args.ray_rounds)]
            same = [sys.executable, "-m", "headway", "run", "--as-ray", *rays[1:]]
            found["ray train's program on headway"] = [contest(same, 60) for _ in range(args.rounds)]
    return report(found)


def contest(command: list[str], limit_s: float, **env: str) -> dict[str, float]:
    """One run of one contestant; what could not be measured is missing."""
    took, marks, output = run(command, limit_s, **env)
    found = {name: max(values) for name, values in marks.items()}
    if took is not None:
        found["whole"] = took
    if "step" not in found:
        print(output[-2000:], file=sys.stderr)
    return found


def report(found: dict[str, Rounds]) -> int:
    seconds: dict[str, dict[str, Any]] = {
        who: {key: median([r[key] for r in rounds if key in r]) for key in ("first", "step", "whole", "second")}
        for who, rounds in found.items()
    }
    hangs = {who: sum("whole" not in r for r in rounds) for who, rounds in found.items()}
    ours, theirs, rays = seconds["headway"], seconds["torchrun"], seconds.get("ray train", {})
    moved = seconds.get("ray train's program on headway", {})
    ratios = {
        "first line / torchrun": (0.7, ratio(ours["first"], theirs["first"])),
        "first line / ray train": (0.15, ratio(ours["first"], rays.get("first"))),
        "first line of ray train's program on headway / on ray train": (
            0.25,
            ratio(moved.get("first"), rays.get("first")),
        ),
        "first step / torchrun": (0.75, ratio(ours["step"], theirs["step"])),
        "second fit / torchrun's whole run": (0.06, ratio(ours["second"], theirs["whole"])),
    }
    claims = {f"{name} <= {limit}": at_most(limit, value) for name, (limit, value) in ratios.items()}
    result = {
        "seconds (median)": seconds,
        "did not end": hangs,
        "ratios": {name: value for name, (_, value) in ratios.items()},
    }
    return publish("start", result, claims)


if __name__ == "__main__":
    sys.exit(main())
