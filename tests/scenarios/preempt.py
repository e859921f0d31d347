"""SIGTERM is sent repeatedly to a worker or to the program; lost, repeated and skipped reports are counted."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal

from headway.core.errors import PreemptionError
from headway.storage.run.reader import RunReader
from scenarios.history import Attempt, Comparison, attempts, compare, events, seeded
from scenarios.training import METRICS, SEED, Hang, Training, Trouble, run_undisturbed, stacks, training

RANKS = (0, 1)
Whom = Literal["a worker", "the program"]
SAID = re.compile(r"PreemptionError: this program received SIGTERM; run it again to resume from (\w+)")


@dataclass
class Found:
    told: dict[Whom, int] = field(default_factory=lambda: {"a worker": 0, "the program": 0})
    committed: int = 0  # times after which the last report of every rank had become a checkpoint
    lost: int = 0  # reports that were done again
    skipped: int = 0  # reports that nobody did
    other_attempts: int = 0  # beyond those that began after somebody was told to leave
    seconds: dict[Whom, list[float]] = field(default_factory=lambda: {"a worker": [], "the program": []})
    hangs: int = 0
    trouble: list[str] = field(default_factory=list)
    comparison: Comparison = field(default_factory=lambda: Comparison(0, 0, 0))


def run_with_preemptions(folder: Path, told: dict[Whom, int], seed: int) -> Found:
    """Run once with SIGTERM sent to workers and to the program, once undisturbed, and compare."""
    found, chance = Found(), random.Random(seed)
    run = seeded(folder / "preempted" / "run", SEED)
    whom = [each for each, times in told.items() for _ in range(times)]
    chance.shuffle(whom)
    try:
        while live(run, folder, whom, chance, found):
            pass
        found.comparison = compare(run, run_undisturbed(folder, (run.parent / "last").read_text()), *METRICS)
    except Trouble as trouble:
        found.hangs += isinstance(trouble, Hang)
        found.trouble.append(str(trouble))
    audit(run, found)
    return found


def live(run: Path, folder: Path, whom: list[Whom], chance: random.Random, found: Found) -> bool:
    """Run the program until it is preempted (True: it must be continued) or finished."""
    with training(run, folder) as life:
        try:
            life.go_further()
            while whom:
                time.sleep(chance.random() * 0.5)
                next_one = whom.pop()
                found.told[next_one] += 1
                began = time.monotonic()
                if next_one == "the program":
                    tell_the_program(life, found)
                else:
                    tell_a_worker(life, chance.choice(RANKS))
                found.seconds[next_one].append(time.monotonic() - began)
                if next_one == "the program":
                    return True
            life.finish()
        except Trouble as trouble:
            print(f"{trouble}\n{life.runner.output[-5000:]}\n{stacks(life.runner.pid)}", file=sys.stderr)
            raise
    return False


def tell_a_worker(life: Training, rank: int) -> None:
    """Send SIGTERM to a worker; return when two new workers have finished a step."""
    dead = {life.runner.worker(rank) for rank in RANKS}
    os.kill(life.runner.worker(rank), signal.SIGTERM)
    life.wait(lambda: all(life.runner.worker(rank) not in dead for rank in RANKS))
    life.go_further()


def tell_the_program(life: Training, found: Found) -> None:
    """Send SIGTERM to the program; its exit code, output and checkpoints must agree."""
    os.kill(life.runner.pid, signal.SIGTERM)
    life.wait_for_its_end()
    said = SAID.search(life.runner.output)
    states = [event["state"] for event in events(life.run, "end")]
    kept = [saved.path.name for saved in RunReader.at(life.run).checkpoints()]
    story = (life.runner.code, [said[1]] if said else [], states[-1:])
    if story != (PreemptionError.exit_code, kept[-1:], ["PREEMPTED"]):
        found.trouble.append(f"told to leave, it left with {story}, and there are {kept}")
        print(f"{found.trouble[-1]}\n{life.runner.output[-5000:]}", file=sys.stderr)


def audit(run: Path, found: Found) -> None:
    """Check the journal of every preempted attempt: all but the last."""
    saved = {event["seq"] for event in events(run, "checkpoint")}
    lives = attempts(run)
    found.other_attempts = len(lives) - 1 - sum(found.told.values())
    for before, after in pairwise(lives):
        last = [before.newest(rank) for rank in RANKS]
        found.committed += len(set(last)) == 1 and last[0] in saved
        found.lost += sum(max(0, newest + 1 - after.first_seq) for newest in last)
        found.skipped += sum(max(0, after.first_seq - newest - 1) for newest in last)
    found.skipped += sum(_gaps(each) for each in lives)


def _gaps(attempt: Attempt) -> int:
    """The number of skipped reports between the first and the last."""
    return sum(attempt.newest(rank) + 1 - attempt.first_seq - len(attempt.reports[rank]) for rank in RANKS)
