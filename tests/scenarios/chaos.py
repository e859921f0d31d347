"""One run suffers faults of every sort, at any moment; its losses are compared with those of an undisturbed run."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from scenarios.history import Comparison, attempts, compare, events, seeded
from scenarios.training import METRICS, SEED, Hang, Training, Trouble, run_undisturbed, stacks, tell, training

GONE_S = 1.0  # by when a process must have ended that does not belong to the run any more


@dataclass
class Found:
    faults: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    halves: int = 0  # checkpoints that were dropped because half of them was missing
    hangs: int = 0
    trouble: str = ""
    orphans: list[str] = field(default_factory=list)
    litter: list[str] = field(default_factory=list)
    comparison: Comparison = field(default_factory=lambda: Comparison(0, 0, 0))


# --- what it suffers ---


def kill_a_worker(training: Training, chance: random.Random) -> None:
    _send(chance.choice(training.workers()), signal.SIGKILL)


def stop_a_worker(training: Training, chance: random.Random) -> None:
    worker = chance.choice(training.workers())
    _send(worker, signal.SIGSTOP)
    time.sleep(chance.uniform(0.05, 1))
    _send(worker, signal.SIGCONT)


def make_one_raise(training: Training, chance: random.Random) -> None:
    _order(training, chance, f"raise {chance.randrange(100)}")


def make_one_exit(training: Training, chance: random.Random) -> None:
    _order(training, chance, f"exit {chance.randrange(256)}")


def kill_while_saving(training: Training, chance: random.Random) -> None:
    staging = training.run / "checkpoints" / ".staging"
    worker = chance.choice(training.workers())
    training.wait(lambda: _begun(staging) or not worker.is_running(), 0.0005)
    _send(worker, signal.SIGKILL)


def kill_the_fork_server(training: Training, chance: random.Random) -> None:
    _send(training.fork_server(), signal.SIGKILL)


FAULTS = {
    "a worker is killed": kill_a_worker,
    "a worker is stopped for a while": stop_a_worker,
    "the function raises": make_one_raise,
    "the function calls os._exit": make_one_exit,
    "a worker is killed during a save": kill_while_saving,
    "the process that forks workers is killed": kill_the_fork_server,
}


def _order(training: Training, chance: random.Random, what: str) -> None:
    order = training.run.parent / f"order-{chance.choice((0, 1))}"
    tell(order, what)
    training.wait(lambda: not order.exists())


def _begun(staging: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return bool(os.listdir(staging))
    return False


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


# --- a run, and what is left of it ---


def inject_faults(disturbed: Training, faults: int, chance: random.Random, found: Found) -> None:
    """Mostly wait for a new step before the next fault; sometimes strike during the restart."""
    kinds = [sorted(FAULTS)[number % len(FAULTS)] for number in range(faults)]
    chance.shuffle(kinds)
    disturbed.go_further()
    for kind in kinds:
        time.sleep(chance.random() * 0.5)
        if chance.random() < 0.8:
            disturbed.go_further()
            found.orphans += settled(disturbed.leftover_processes)
            time.sleep(chance.random() * 0.1)
        FAULTS[kind](disturbed, chance)
        found.faults[kind] += 1
        if (number := found.faults.total()) % 20 == 0:
            print(f"{number} faults, {disturbed.furthest + 1} steps", file=sys.stderr, flush=True)
    disturbed.finish()


def run_with_faults(folder: Path, faults: int, seed: int) -> Found:
    """Run once with faults and once without, for the same number of steps, and compare."""
    found, before = Found(), shared_memory()
    run = seeded(folder / "chaos" / "run", SEED)
    with training(run, folder) as disturbed:
        try:
            inject_faults(disturbed, faults, random.Random(seed), found)
        except Trouble as trouble:
            found.hangs += isinstance(trouble, Hang)
            found.trouble = str(trouble)
            runner = disturbed.runner
            print(f"{trouble}\n{runner.output[-5000:]}\n{stacks(runner.pid)}", file=sys.stderr)
        else:
            found.orphans += settled(disturbed.leftover_processes)
            found.litter = [*settled(lambda: shared_memory() - before), *litter(run)]
    found.attempts = len(attempts(run))
    found.halves = len(events(run, "partial"))
    if not found.trouble:
        quiet = run_undisturbed(folder, (run.parent / "last").read_text())
        found.comparison = compare(run, quiet, *METRICS)
    return found


def settled(look: Callable[[], set[str]]) -> list[str]:
    """What is left after a grace period."""
    until = time.monotonic() + GONE_S
    while (left := look()) and time.monotonic() < until:
        time.sleep(0.01)
    return sorted(left)


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("torch_", "headway"))}


def litter(run: Path) -> list[str]:
    """Files in the directory of a finished run that do not belong there."""
    known = {"run.json", "events.jsonl", "metrics.jsonl", "checkpoints", "logs", "failures", ".lock"}
    staging = run / "checkpoints" / ".staging"
    return [*(path.name for path in run.iterdir() if path.name not in known), *map(str, staging.glob("*"))]
