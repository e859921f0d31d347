"""The watchdog with a virtual clock: which silence counts as a stall, and what ends the stall."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from headway.core.config import FailureConfig
from headway.core.messages import Frame, Heartbeat, Report, StackDump, Wait
from headway.diagnosis.verdict import Diagnosis
from headway.diagnosis.watchdog import AWAY_S, Watchdog
from headway.engine.process_stats import OutsideStacks, ProcessStats

LOCK = (Frame("/home/you/train.py", 31, "train_func", hint="lock"),)
SPIN = (Frame("/home/you/train.py", 40, "train_func"),)
WARN_S = 5.0


@dataclass
class Patient:
    """A simulated rank: what its main thread does, and its shares of a core."""

    main: tuple[Frame, ...] = LOCK
    cpu: float = 0.0
    delay: float = 0.0
    tree: float = 0.0
    reports_every_s: float | None = None
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    vital: ProcessStats = field(default_factory=lambda: ProcessStats("S"))


@dataclass
class World:
    """A simulation, in which time passes only on request."""

    patients: list[Patient]
    now: float = 1000.0
    said: list[tuple[Diagnosis | None, float]] = field(default_factory=list)
    mentioned: list[str] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = FailureConfig(stall_warn_s=WARN_S)
        self.watch = Watchdog(config, self, self.found, lambda phase, ranks, s: self.mentioned.append(phase))
        self.watch.begin(len(self.patients), self.now)

    def found(self, diagnosis: Diagnosis | None, silent_s: float) -> None:
        self.said.append((diagnosis, self.now))

    def ask(self, rank: int, index: int) -> None:
        self.asked.append((rank, index))

    def vital(self, rank: int) -> ProcessStats:
        return self.patients[rank].vital

    def outside(self, rank: int) -> OutsideStacks | None:
        return None

    def pass_s(self, seconds: float, step: float = 0.05) -> None:
        for _ in range(round(seconds / step)):
            self.now += step
            for rank, each in enumerate(self.patients):
                runnable = step * (each.cpu + each.delay)
                each.vital = replace(
                    each.vital,
                    cpu_s=each.vital.cpu_s + step * each.cpu,
                    delay_s=each.vital.delay_s + step * each.delay,
                    all_s=each.vital.all_s + runnable,
                    tree_s=each.vital.tree_s + runnable + step * each.tree,
                )
                every = each.reports_every_s
                if every is not None and self.now // every != (self.now - step) // every:
                    self.report(rank)
            for rank, index in self.asked:
                each = self.patients[rank]
                dump = StackDump(index=index, heartbeat=each.heartbeat, main=each.main, text="")
                self.watch.on_message(rank, dump, self.now)
            self.asked.clear()
            self.watch.look(self.now)

    def report(self, rank: int) -> None:
        self.watch.on_message(rank, Report(0, self.now, b"{}"), self.now)

    @property
    def faults(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(found.fault, found.ranks) for found, _ in self.said if found is not None]


def reporter() -> Patient:
    return Patient(SPIN, cpu=0.5, reports_every_s=0.1)


def test_an_inactive_rank_is_named_in_time_whatever_the_others_report() -> None:
    world = World([reporter(), Patient()])
    world.pass_s(10)
    assert set(world.faults) == {("lock", (1,))}
    assert world.said[0][1] - 1000 < 2 * WARN_S
    assert all(found is not None for found, _ in world.said), "that the other gets on does not end it"


def test_a_stall_is_over_when_that_rank_makes_progress() -> None:
    world = World([reporter(), Patient()])
    world.pass_s(10)
    world.report(1)
    assert world.said[-1][0] is None


def test_a_rank_whose_children_compute_is_mentioned_and_not_blamed() -> None:
    world = World([Patient(tree=1.7)])
    world.pass_s(200)
    assert world.faults == []
    assert world.mentioned


@pytest.mark.parametrize("computes_s", [0.0, 1.0, 4.0, 8.0, 20.0, 33.3])
def test_it_is_blamed_in_time_when_they_have_stopped(computes_s: float) -> None:
    world = World([reporter(), Patient(tree=1.0)])
    world.pass_s(computes_s)
    assert world.faults == []
    world.patients[1].tree = 0.0
    stopped = world.now
    world.pass_s(15)
    assert world.faults[0] == ("lock", (1,))
    assert world.said[0][1] - stopped < 12


def test_a_rank_that_computes_now_and_then_is_not_inactive() -> None:
    world = World([Patient()])
    for _ in range(20):
        world.patients[0].tree = 1.0
        world.pass_s(1.5)
        world.patients[0].tree = 0.0
        world.pass_s(2.0)
    assert world.faults == []


def test_time_without_a_cpu_is_not_counted() -> None:
    """Twelve other threads run on the same core, and another rank waits for this one."""
    inside = (Frame("/src/headway/worker/requests.py", 1, "wait", users=False),)
    barrier = Heartbeat(wait=Wait(operation="barrier", since=0.0))
    world = World([Patient(inside, heartbeat=barrier), Patient(SPIN, cpu=1 / 13, delay=12 / 13)])
    world.pass_s(8 * WARN_S)
    assert world.faults == []
    world.pass_s(8 * WARN_S)
    assert world.faults[0] == ("busy", (1,))


def test_an_endless_loop_is_named_when_the_others_continue_to_report() -> None:
    world = World([reporter(), Patient(SPIN, cpu=1.0)])
    world.report(0)
    world.report(1)
    world.pass_s(15)
    assert world.faults[0] == ("busy", (1,))


def test_a_long_computation_of_a_rank_that_never_kept_step_is_no_stall() -> None:
    world = World([reporter(), Patient(SPIN, cpu=1.0)])
    world.pass_s(30)
    world.report(1)
    world.pass_s(30)
    assert world.faults == []


@pytest.mark.parametrize("before_s", [0.0, 1.0, 2.6, 4.9, 5.2, 6.0])
def test_a_machine_that_was_suspended_is_not_silent(before_s: float) -> None:
    world = World([Patient(SPIN, cpu=0.5, reports_every_s=0.5), Patient()])
    world.pass_s(before_s)
    world.now += 3600
    world.report(0)
    world.watch.look(world.now)
    world.pass_s(WARN_S - AWAY_S / 10)
    assert world.faults == []
    world.pass_s(WARN_S)
    assert world.faults[0] == ("lock", (1,)), "it is found again, since it was stalled all the time"
