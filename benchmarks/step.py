"""Does training run at full speed? The same DDP loop under TorchTrainer and under torchrun, in interleaved pairs.

    python benchmarks/step.py [--pairs 15]

And what we cost per step, measured in the worker: the time in ``report()``, called in every step, and what loading a
batch through a prepared loader takes beyond a plain one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from typing import Any

from common import at_least, at_most, median, program, publish, run, torchrun


def main() -> int:
    parser = argparse.ArgumentParser(description="Does training run at full speed?")
    parser.add_argument("--pairs", type=int, default=15)
    args = parser.parse_args()
    pairs: list[tuple[float, float]] = []
    costs: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        ours = [sys.executable, program("step_headway"), folder]
        theirs = torchrun(program("step_torchrun"))
        for number in range(args.pairs):
            # Whoever runs second finds a warmer machine: take turns.
            order = (ours, theirs) if number % 2 else (theirs, ours)
            found = {id(command): run(command, 120, GLOO_SOCKET_IFNAME="lo")[1] for command in order}
            mine, others = found[id(ours)], found[id(theirs)]
            pairs.append((min(mine["steps/s"]), min(others["steps/s"])))
            costs.append(cost(mine))
            print(f"pair {number}: {pairs[-1][0]:.1f} against {pairs[-1][1]:.1f} steps/s", file=sys.stderr)
    speed = median([mine / others for mine, others in pairs])
    share = median(costs)
    result: dict[str, Any] = {
        "steps/s (median)": {"headway": median([p[0] for p in pairs]), "torchrun": median([p[1] for p in pairs])},
        "pairs": len(pairs),
        "speed against torchrun (median of pairs)": speed,
        "our cost per step, as a share of it": share,
    }
    claims = {
        "speed >= 0.95 of torchrun": at_least(0.95, speed),
        "our own cost <= 1 % of a step": at_most(0.01, share),
        "at least 15 pairs": len(pairs) >= 15,
    }
    return publish("step", result, claims)


def cost(marks: dict[str, list[float]]) -> float:
    """The worse of the two workers."""
    loading = [
        mine - plain for mine, plain in zip(marks["prepared_loading_us"], marks["plain_loading_us"], strict=True)
    ]
    steps = zip(marks["reporting"], loading, marks["step_us"], strict=True)
    return max(reporting + max(0.0, extra) / step_us for reporting, extra, step_us in steps)


if __name__ == "__main__":
    sys.exit(main())
