"""How soon does training go on after a worker was killed? Headway, torchrun and Ray Train side by side.

    python benchmarks/recover.py [--kills 5] [--ray-kills 2]

Two CPU workers, a DDP loop of short steps that saves its state every few of them, each contestant by its own natural
means. SIGKILL takes the worker of rank 1; measured is the time from there to the end of the first step of two new
processes (the later one), which must go on from a checkpoint of the killed life.

torchrun takes part twice. As it is, its restarted workers may read addresses of the killed ones in a store that
outlives them, and fail again or wait for ever; where that store is not shared they do not. We compare with the faster.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import at_most, median, program, publish, ratio, torchrun

from scenarios.observed_program import ObservedProgram, observed

RANKS = (0, 1)
EVERY, RAY_EVERY = 10, 20  # steps between checkpoints; a report of Ray Train takes as long as hundreds of steps
SAVES = 2  # so many checkpoints of its own has every life that is ended
STEP_S = 0.01  # about what a step takes
LIMIT_S = 60.0  # for what should take seconds
RUNS = 3  # one that hangs is ended and another is begun, until there were so many

ENV = {"GLOO_SOCKET_IFNAME": "lo"}  # what Headway sets by itself
OWN_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@dataclass
class Found:
    """Seconds after each kill; and what went wrong, if anything did."""

    function_s: list[float] = field(default_factory=list)  # to the first line of the training function
    step_s: list[float] = field(default_factory=list)  # to the end of the first step
    trouble: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description="How soon does training go on after a worker was killed?")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--ray-kills", type=int, default=2)
    args = parser.parse_args()
    ours = [sys.executable, program("recover_headway")]
    theirs = torchrun("--max-restarts=1000", program("recover_torchrun"))
    rays = [sys.executable, program("recover_ray")]
    found = {
        "headway": contest(ours, args.kills, EVERY, ENV),
        "torchrun": contest(theirs, args.kills, EVERY, ENV),
        "torchrun, stores not shared": contest(theirs, args.kills, EVERY, {**ENV, **OWN_STORES}),
        "ray train": Found(trouble=["not installed"]),
    }
    if importlib.util.find_spec("ray"):
        found["ray train"] = contest(rays, args.ray_kills, RAY_EVERY, ENV)
    return report(found)


def contest(command: list[str], kills: int, every: int, env: dict[str, str]) -> Found:
    """So many kills of one contestant, in one run if it does not hang."""
    found, chance = Found(), random.Random(0)
    for _ in range(RUNS):
        if len(found.step_s) == kills:
            break
        with (
            tempfile.TemporaryDirectory(prefix="recover-", ignore_cleanup_errors=True) as folder,
            observed([*command, folder, str(every)], Path(folder), **env) as runner,
        ):
            dead: set[int] = set()
            while len(found.step_s) < kills and (trouble := strike(runner, every, chance, dead, found)) is None:
                pass
            if trouble:
                found.trouble.append(trouble)
                print(f"{trouble}\n{runner.output[-3000:]}", file=sys.stderr)
    return found


def strike(runner: ObservedProgram, every: int, chance: random.Random, dead: set[int], found: Found) -> str | None:
    """Let it save, kill rank 1 at some moment between two checkpoints, and wait until it goes on.

    ``dead``: the processes of the lives before. Gives what went wrong, if anything did.
    """
    if not runner.wait(lambda: all(_steps(runner, rank, dead) > SAVES * every for rank in RANKS), LIMIT_S):
        return runner.ended or f"it did not come through {SAVES * every} steps in {LIMIT_S:.0f} s"
    time.sleep(chance.random() * every * STEP_S)
    life = [mark for mark in runner.marks if mark.pid not in dead]
    dead.update(mark.pid for mark in life)
    killed = runner.kill(1)
    if not runner.wait(lambda: all(_steps(runner, rank, dead) for rank in RANKS), LIMIT_S):
        return runner.ended or f"it did not go on within {LIMIT_S:.0f} s of a kill"
    fresh = [mark for mark in runner.marks if mark.pid not in dead]
    firsts = [next(mark for mark in fresh if mark.rank == rank and mark.step >= 0) for rank in RANKS]
    if firsts[0].step <= min(mark.step for mark in life if mark.step >= 0):
        return f"it went on at step {firsts[0].step}, from no checkpoint of the killed life"
    pids = {mark.pid for mark in firsts}
    found.function_s.append(max(mark.time for mark in fresh if mark.step < 0 and mark.pid in pids) - killed)
    found.step_s.append(max(mark.time for mark in firsts) - killed)
    return None


def _steps(runner: ObservedProgram, rank: int, dead: set[int]) -> int:
    """How many this rank has done in its present life."""
    return sum(mark.rank == rank and mark.step >= 0 and mark.pid not in dead for mark in runner.marks)


def report(found: dict[str, Found]) -> int:
    seconds: dict[str, dict[str, Any]] = {
        who: {
            "first line of the function": median(each.function_s),
            "first step": median(each.step_s),
            "first step, every kill": [round(value, 3) for value in each.step_s],
        }
        for who, each in found.items()
    }
    took = {who: each["first step"] for who, each in seconds.items()}
    torchrun_s = min((value for who, value in took.items() if value and who.startswith("torchrun")), default=None)
    ratios = {
        "kill to first step / torchrun": (0.25, ratio(took["headway"], torchrun_s)),
        "kill to first step / ray train": (0.1, ratio(took["headway"], took["ray train"])),
    }
    claims = {f"{name} <= {limit}": at_most(limit, value) for name, (limit, value) in ratios.items()}
    claims["headway goes on after every kill"] = not found["headway"].trouble
    result = {
        "seconds after a kill (median)": seconds,
        "ratios": {name: value for name, (_, value) in ratios.items()},
        "trouble": {who: each.trouble for who, each in found.items() if each.trouble},
    }
    return publish("recover", result, claims)


if __name__ == "__main__":
    sys.exit(main())
