"""How much of the training is left when workers are killed all the time? Headway, two CPU workers, tracked state.

    python benchmarks/goodput.py [--seconds 300] [--every 10]

A training of so many seconds, counted from its first step, is left alone; another of the same length loses a worker,
one or the other by chance, once in every 10 seconds. Compared is how many steps they have come forward: what is done
again after a restart does not count. Both are done in slices that take turns, so that the machine's noise meets both.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from common import at_least, program, publish, ratio

from scenarios.observed_program import ObservedProgram, observed

SAVE_S = 0.5  # between checkpoints
SLICE_S = 30.0
PATIENCE_S = 60.0  # for a first step


@dataclass
class Tally:
    """What came of all slices of one kind."""

    useful: list[int] = field(default_factory=list)  # steps of each slice, none counted twice
    repeated: int = 0
    recoveries: list[float] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description="How much of the training is left when workers are killed?")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--every", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    quiet, killed = Tally(), Tally()
    slices = max(1, round(args.seconds / SLICE_S))
    for _ in range(slices):
        train(args.seconds / slices, None, chance, quiet)
        train(args.seconds / slices, args.every, chance, killed)
    return report(quiet, killed, args.seconds / slices)


def train(seconds: float, every: float | None, chance: random.Random, tally: Tally) -> None:
    """One slice, a run of its own."""
    with tempfile.TemporaryDirectory(prefix="goodput-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, program("goodput_headway"), folder, str(SAVE_S)]
        with observed(command, Path(folder)) as runner:
            if trouble := train_and_kill(runner, seconds, every, chance, tally):
                tally.trouble.append(trouble)
                print(f"{trouble}\n{runner.output[-3000:]}", file=sys.stderr)


def train_and_kill(
    runner: ObservedProgram, seconds: float, every: float | None, chance: random.Random, tally: Tally
) -> str | None:
    """What went wrong, if anything did."""
    if not runner.wait(lambda: any(mark.step >= 0 for mark in runner.marks), PATIENCE_S):
        return runner.ended or "it did not begin"
    began = next(mark.time for mark in runner.marks if mark.step >= 0)
    for moment in moments(seconds, every, chance) if every else ():
        waited = runner.wait(lambda moment=moment: time.time() >= began + moment, seconds)
        took = strike(runner, chance.choice((0, 1))) if waited else None
        if took is None:
            return runner.ended or f"it did not go on within {PATIENCE_S:.0f} s of a kill"
        tally.recoveries.append(took)
    runner.wait(lambda: time.time() >= began + seconds, seconds)
    steps = [mark.step for mark in runner.marks if mark.step >= 0 and mark.rank == 0 and mark.time < began + seconds]
    tally.useful.append(steps[-1] + 1)
    tally.repeated += len(steps) - (steps[-1] + 1)
    return None


def moments(seconds: float, every: float, chance: random.Random) -> list[float]:
    """When to kill: once in every so many seconds, and early enough in each for the slice to see what it costs."""
    return [(number + chance.uniform(0, 0.7)) * every for number in range(int(seconds / every))]


def strike(runner: ObservedProgram, rank: int) -> float | None:
    """Kill this worker; how long it took rank 0 to finish another step."""
    known = len(runner.marks)
    dead = {mark.pid for mark in runner.marks}
    killed = runner.kill(rank)

    def first() -> float | None:
        fresh = (mark.time for mark in runner.marks[known:] if mark.pid not in dead and mark.rank == 0 <= mark.step)
        return next(fresh, None)

    runner.wait(lambda: first() is not None, PATIENCE_S)
    went_on = first()
    return None if went_on is None else went_on - killed


def report(quiet: Tally, killed: Tally, slice_s: float) -> int:
    rates = {"left alone": _rate(quiet, slice_s), "with kills": _rate(killed, slice_s)}
    goodput = ratio(rates["with kills"], rates["left alone"])
    result = {
        "useful steps/s": rates,
        "useful steps in each slice": {"left alone": quiet.useful, "with kills": killed.useful},
        "seconds of a slice": slice_s,
        "kills": len(killed.recoveries),
        "seconds from a kill to the next step": {
            "mean": round(mean(killed.recoveries), 3) if killed.recoveries else None,
            "longest": round(max(killed.recoveries), 3) if killed.recoveries else None,
        },
        "steps repeated": killed.repeated,
        "useful with kills / left alone": goodput,
        "the same from the slices with kills alone": _account(killed, slice_s),
        "trouble": quiet.trouble + killed.trouble,
    }
    claims = {
        "useful steps with kills >= 0.9 x left alone": at_least(0.9, goodput),
        "it goes on after every kill": not killed.trouble,
    }
    return publish("goodput", result, claims)


def _rate(tally: Tally, slice_s: float) -> float | None:
    return round(mean(tally.useful) / slice_s, 2) if tally.useful else None


def _account(tally: Tally, slice_s: float) -> float | None:
    """The share of the time that was not spent on going on, times the share of the steps that were not repeated.

    What noise does to one kind of slice and not to the other is not in it.
    """
    if not tally.useful:
        return None
    useful, whole_s = sum(tally.useful), slice_s * len(tally.useful)
    return round((1 - sum(tally.recoveries) / whole_s) * useful / (useful + tally.repeated), 4)


if __name__ == "__main__":
    sys.exit(main())
