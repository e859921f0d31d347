"""The verdict on ranks that make no progress: which rank is to blame, and for what. Pure.

The input is three samples of every rank's stack, taken a moment apart, and the kernel's statistics on its processes.
Ranks that *wait* (in a collective, or in a Headway call that waits for other ranks) wait for a rank that does not wait;
what that rank does determines the class of the fault. If all ranks wait, they wait for each other: in different
operations, or after different numbers of batches.

Silence alone is not a stall. These ranks are never blamed, no matter how long they are silent:

- a rank that computes, while no rank waits for it and no rank leaves it behind (see ``Rank.left_behind``);
- a rank whose main thread waits while its other threads, or processes that it has started, compute (``Rank.alive``);
- a rank that does not compute, but reads or writes files (``Rank.transfers``): a download, a slow disk;
- a rank that compiles, imports modules, reads a checkpoint, or has announced a phase (``Rank.phase``).

A rank that is ready to run but gets no CPU (on a crowded machine) counts as computing; the time without a CPU is not
counted as silence (``Rank.starved``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from headway.core import phrases
from headway.core.messages import Frame, Heartbeat
from headway.diagnosis.activity import Doing, doing, is_compiling, is_importing

Fault = Literal[
    "stopped",  # stopped by a signal, or in a debugger
    "dead",  # the process has ended
    "busy",  # it computes in one place
    "slow",  # it computes, in several places, and the other ranks wait
    "lock",
    "sleep",
    "loader",
    "io",
    "child",
    "blocked",  # it waits for something that cannot be determined
    "mismatch",  # different collectives on different ranks
    "uneven",  # different numbers of batches
    "collective",  # all ranks are in the same collective, which does not end
]

BUSY = 0.2  # share of a core that a thread uses, or would use if it were scheduled
SPINS = 0.8  # share of a core: the thread does nothing but compute
TRANSFERS = 64 * 1024  # bytes per second in files and pipes: more than reports and logs need
OWN_WORK = "waiting for threads or processes of its own, which compute"


@dataclass(frozen=True)
class Sample:
    """One sample of one rank.

    Args:
        state: The state of its main thread, as in /proc.
        cpu_s: The CPU time of its main thread so far.
        all_s: The time that its threads have run or waited for a CPU so far.
        time_s: The time when the sample was taken.
        main: The calls of its main thread; empty if they are unknown.
        answered: Whether the rank itself answered the request.
        delay_s: The time that its main thread has waited for a CPU so far.
        tree_s: The time that the threads of all its processes have run or waited for a CPU so far.
        phase: A long-running operation in another thread that its data loader waits for.
        moved_bytes: The bytes that all its processes have read from and written to files and pipes so far.
    """

    state: str = ""
    cpu_s: float = 0.0
    all_s: float = 0.0
    time_s: float = 0.0
    main: tuple[Frame, ...] = ()
    answered: bool = True
    delay_s: float = 0.0
    tree_s: float = 0.0
    phase: str = ""
    moved_bytes: int = 0


@dataclass(frozen=True)
class Rank:
    """What is known about one rank.

    Args:
        rank: Its number.
        silent: Whether it has made no progress for a while.
        samples: Its three samples.
        heartbeat: Its progress, and what it waits for.
        over: Whether its function has returned.
        before: An earlier sample without a stack, which reveals ranks that compute only from time to time.
        reporting: Whether it has recently reported several times.
        left_behind: Whether ranks that were in step with it have reported several times since it fell silent.
    """

    rank: int
    silent: bool = True
    samples: tuple[Sample, ...] = ()
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    over: bool = False
    before: Sample | None = None
    reporting: bool = False
    left_behind: bool = False

    @property
    def last(self) -> Sample:
        return self.samples[-1]

    @property
    def stopped(self) -> bool:
        return bool(self.samples) and all(sample.state in ("T", "t") for sample in self.samples)

    @property
    def dead(self) -> bool:
        return bool(self.samples) and self.last.state in ("Z", "X")

    @property
    def runnable(self) -> float:
        """The share of the time in which its main thread ran, or waited for nothing but a CPU."""
        if len(self.samples) > 1 and all(sample.state == "R" for sample in self.samples):
            return 1.0  # the kernel counts a run delay only after it has ended
        first = self.samples[0]
        return _share(self.last.cpu_s - first.cpu_s + self.last.delay_s - first.delay_s, self._passed_s)

    @property
    def starved(self) -> float:
        """The share of the time in which its main thread was ready to run and got no CPU."""
        return max(0.0, self.runnable - _share(self.last.cpu_s - self.samples[0].cpu_s, self._passed_s))

    @property
    def computes(self) -> bool:
        """Whether its main thread computes, or would if it were scheduled."""
        return self.runnable > BUSY

    @property
    def idle(self) -> bool:
        """Whether none of its threads computes. A backward pass on a GPU, for example, runs in another thread."""
        return _share(self.last.all_s - self.samples[0].all_s, self._passed_s) <= BUSY

    @property
    def alive(self) -> bool:
        """Whether processes that it has started compute, or other threads do while its main thread waits."""
        first, last = self.before or self.samples[0], self.last
        passed_s = last.time_s - first.time_s
        if self.computes:
            others_s = last.tree_s - last.all_s - (first.tree_s - first.all_s)
            return _share(others_s, passed_s) > BUSY and not self.spins
        return _share(last.tree_s - first.tree_s, passed_s) > BUSY

    @property
    def transfers(self) -> bool:
        """Whether it, or a process that it has started, continuously reads or writes files without computing."""
        moved = [after.moved_bytes - before.moved_bytes for before, after in pairwise(self.samples)]
        return bool(moved) and not self.computes and min(moved) > 0 and sum(moved) > TRANSFERS * self._passed_s

    @property
    def _passed_s(self) -> float:
        return self.last.time_s - self.samples[0].time_s

    @property
    def is_inactive(self) -> bool:
        """Whether it does nothing at all, according to the kernel's statistics and its stack."""
        return not self.moves and not self.computes and not self.alive and not self.transfers

    @property
    def moves(self) -> bool:
        """Whether its samples are in different functions."""
        paths = {tuple((f.file, f.function) for f in sample.main) for sample in self.samples if sample.main}
        return len(paths) > 1

    @property
    def doing(self) -> Doing:
        return doing(self.last.main, idle=self.idle, in_loader=self.heartbeat.in_loader, wait=self.heartbeat.wait)

    @property
    def phase(self) -> str:
        """The phase it is in, during which silence is expected; empty if it is in none."""
        if self.heartbeat.phase:
            return self.heartbeat.phase
        if self.doing.kind == "loader" and (begins := [sample.phase for sample in self.samples if sample.phase]):
            return begins[-1]
        if self.doing.kind == "storage":
            return "reading a checkpoint"
        if any(is_compiling(sample.main) for sample in self.samples):
            return "compiling"
        reads_disk = any(sample.state == "D" for sample in self.samples)
        if any(is_importing(sample.main) for sample in self.samples) and (reads_disk or not self.is_inactive):
            return "importing modules"
        if self.waits:
            return ""
        return OWN_WORK if self.alive else "reading or writing files" if self.transfers else ""

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks and for nothing else."""
        return self.over or (self.doing.kind in ("collective", "wait") and not self.moves and not self.stopped)

    @property
    def spins(self) -> bool:
        """Whether it does nothing but compute in one place."""
        return self.runnable > SPINS and not self.moves


def _share(part_s: float, whole_s: float) -> float:
    return part_s / whole_s if whole_s > 0 else 0.0


@dataclass(frozen=True)
class Diagnosis:
    """``ranks`` are to blame; ``text`` explains why."""

    fault: Fault
    ranks: tuple[int, ...]
    text: str


def diagnose(ranks: Sequence[Rank]) -> Diagnosis | None:
    """Return the diagnosis; None if every rank makes progress or its silence is expected."""
    seen = [rank for rank in ranks if rank.samples or rank.over]
    if stopped := [rank for rank in seen if rank.stopped]:
        return _found("stopped", stopped, seen, "stopped, by a signal or in a debugger")
    if dead := [rank for rank in seen if rank.dead]:
        return _found("dead", dead, seen, "dead, and its exit was not reported")
    waiting = [rank for rank in seen if rank.waits]
    others = [rank for rank in seen if not rank.waits]
    if len(seen) == 1 and waiting:
        return None  # no other rank could release it, so it waits for its device
    if others and (blamed := _blamed(others, waiting, seen)):
        return blamed
    held = [rank for rank in waiting if not rank.over and rank.silent]  # silent long enough for a stall
    if not others:
        stalled = held and all(rank.silent or rank.over for rank in waiting)
        return _waiting_for_each_other(waiting, seen) if stalled else None
    if all(rank.reporting for rank in others):  # they make progress without the ranks that wait
        return _contradiction(held, [rank for rank in waiting if rank.over], seen)
    return None


def _blamed(others: Sequence[Rank], waiting: Sequence[Rank], seen: Sequence[Rank]) -> Diagnosis | None:
    """If some ranks do not wait, blame the one that is furthest behind, because the waiting ranks wait for it.

    An inactive rank is to blame whatever the others do. A rank that computes is to blame only if another rank waits for
    it and cannot be waiting for a third rank (for example, one in a phase), or if it spins and was left behind.
    """
    held = [rank for rank in waiting if not rank.over and rank.silent]
    suspects = [rank for rank in others if not rank.phase and rank.silent]
    inactive = [rank for rank in suspects if rank.is_inactive]
    excused = [rank for rank in others if rank.phase or not (rank.silent or rank.reporting)]
    if inactive and (excused or not held):
        behind = _furthest_behind(inactive) if held else inactive
    elif held and suspects and not excused:
        behind = _furthest_behind(suspects)
    else:
        behind = inactive or [rank for rank in suspects if rank.spins and rank.left_behind]
    if not behind:
        return None
    fault, what = _fault(behind[0])
    same = [rank for rank in behind if _fault(rank)[0] == fault]
    return _found(fault, same, seen, what)


def _furthest_behind(ranks: Sequence[Rank]) -> list[Rank]:
    least = min(rank.heartbeat.common for rank in ranks)
    return [rank for rank in ranks if rank.heartbeat.common == least]


def _fault(rank: Rank) -> tuple[Fault, str]:
    doing = rank.doing
    where = f" in {doing.where}" if doing.where else ""
    kind = "code" if rank.computes and doing.kind in ("lock", "sleep", "io", "child") else doing.kind
    match kind:
        case "loader":
            return "loader", f"waiting for its data loader{where}"
        case "lock":
            return "lock", f"waiting for a lock{where}, which is never released"
        case "sleep":
            return "sleep", f"asleep{where}"
        case "io":
            return "io", f"waiting for a file, a pipe or the network{where}"
        case "child":
            return "child", f"waiting for a process that it started{where}"
        case _ if rank.moves:
            return "slow", f"still working{where}"
        case _ if rank.computes or not rank.idle:
            return "busy", f"busy{where} and making no progress"
        case _ if rank.last.state == "D":
            return "io", f"waiting for a disk{where}"
        case _ if not rank.last.answered and not rank.last.main:
            return "blocked", "not answering"
        case _:
            return "blocked", f"waiting for something{where}"


def _waiting_for_each_other(waiting: Sequence[Rank], seen: Sequence[Rank]) -> Diagnosis | None:
    held = [rank for rank in waiting if not rank.over]
    over = [rank for rank in waiting if rank.over]
    if over:
        return _uneven(over, held, seen)
    if all(rank.alive for rank in held):
        return None  # for example, they are transferring a large tensor
    if all(rank.doing.kind == "wait" for rank in held) and len({rank.heartbeat.meetings for rank in held}) == 1:
        return None  # the controller releases them, or fails the run
    batches = {rank.heartbeat.batches for rank in held}
    operations = {rank.doing.what for rank in held}
    if len(batches) > 1 and (len(operations) > 1 or len({rank.heartbeat.common for rank in held}) > 1):
        fewest = min(batches)
        return _uneven([rank for rank in held if rank.heartbeat.batches == fewest], held, seen)
    if len(operations) > 1:
        odd = _odd_ones(held)
        each = ", ".join(f"{_who([rank])} in {rank.doing.text}" for rank in held)
        where = "in different operations" if len(odd) == len(held) else "in a different operation from the others"
        return _found("mismatch", odd, seen, f"{where}: {each}", is_complete=True)
    least = min(rank.heartbeat.common for rank in held)
    behind = [rank for rank in held if rank.heartbeat.common == least]
    if len(behind) < len(held):
        return _found("mismatch", behind, seen, f"{_behind(behind, held)} in {held[0].doing.text}", is_complete=True)
    return _found("collective", held, seen, f"all in {held[0].doing.text}, which does not end", is_complete=True)


def _contradiction(held: Sequence[Rank], over: Sequence[Rank], seen: Sequence[Rank]) -> Diagnosis | None:
    """Diagnose ranks that wait while others make progress, whichever rank they wait for."""
    fewer = [rank for rank in over if any(_is_ahead(other, rank) for other in held)]
    if fewer:
        return _uneven(fewer, held, seen)
    if len({rank.doing.what for rank in held}) > 1 and len(held) > 1:
        return _waiting_for_each_other(held, seen)
    return None


def _is_ahead(rank: Rank, other: Rank) -> bool:
    """Whether it waits in an operation that the other rank will never reach, because its function has returned."""
    mine, its = (
        (rank.heartbeat.batches, rank.heartbeat.collectives),
        (other.heartbeat.batches, other.heartbeat.collectives),
    )
    return rank.doing.kind == "collective" and mine > its


def _behind(behind: Sequence[Rank], held: Sequence[Rank]) -> str:
    most = max(rank.heartbeat.common for rank in held)
    return f"at operation {behind[0].heartbeat.common}, the others are at {most}; all wait"


def _uneven(fewer: Sequence[Rank], held: Sequence[Rank], seen: Sequence[Rank]) -> Diagnosis:
    counts = ", ".join(f"rank {rank.rank} {rank.heartbeat.batches}" for rank in seen)
    took = f" (batches taken: {counts})" if any(rank.heartbeat.batches for rank in seen) else ""
    ended = "finished" if fewer[0].over else f"in {fewer[0].doing.text}"
    others = [rank for rank in held if rank not in fewer]
    still = f", while {_wait(others)} in {others[0].doing.text}" if others else ""
    what = f"{ended}{still}: the ranks take different numbers of batches or steps{took}"
    return _found("uneven", fewer, seen, what, is_complete=True)


def _odd_ones(held: Sequence[Rank]) -> list[Rank]:
    """Return the ranks in the operation with the fewest ranks; in a tie, those that are furthest behind."""
    count = {what: sum(rank.doing.what == what for rank in held) for what in {rank.doing.what for rank in held}}
    least = min(count.values())
    odd = [rank for rank in held if count[rank.doing.what] == least]
    if len(odd) == len(held):
        fewest = min(rank.heartbeat.common for rank in held)
        odd = [rank for rank in held if rank.heartbeat.common == fewest]
    return odd


def _wait(ranks: Sequence[Rank]) -> str:
    return f"{_who(ranks)} wait{'s' if len(ranks) == 1 else ''}"


def _who(ranks: Sequence[Rank]) -> str:
    return phrases.ranks(rank.rank for rank in ranks)


def _found(
    fault: Fault, blamed: Sequence[Rank], seen: Sequence[Rank], what: str, *, is_complete: bool = False
) -> Diagnosis:
    numbers = tuple(rank.rank for rank in blamed)
    held = [rank for rank in seen if rank.waits and not rank.over and rank.rank not in numbers]
    text = f"{phrases.ranks_are(numbers)} {what}"
    if held and not is_complete:
        text += f"; {_wait(held)} in {held[0].doing.text} for {_who(blamed)}"
    return Diagnosis(fault, numbers, text)
