"""Which reports belong together, and when a round of them is over. Pure.

Report number ``seq`` of every rank is one round. Nobody waits for anybody: a round closes when every rank has
passed it or ended, and rounds close in order. A rank that stays away is waited for only so long: with more than
``CHECKPOINT_WINDOW`` checkpoints (or ``ROUND_WINDOW`` rounds) open, the oldest closes without it, and a rank once
missed is not waited for again until it reports.

    rank 0   0C  1C  2C  3C            C: with checkpoint files
    rank 1   ·   ·   ·                 only rank 0 reports: 0 closes when 2C arrives, then 1, 2, 3 at once

Files of different rounds are never merged. What would be a lie is said instead:

- *partial*: a round closed without a rank that gave files before; never offered.
- *Late*: files for a round that closed without them; that checkpoint is withdrawn.
- *Crossed*: rank a gave files where b gave none, and b where a gave none: the same save under two numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from headway.core.messages import Report

CHECKPOINT_WINDOW = 2
ROUND_WINDOW = 1024


@dataclass(frozen=True, slots=True)
class Round:
    """One report number over all ranks; None where a rank has not reported (yet)."""

    seq: int
    reports: tuple[Report | None, ...]

    @property
    def givers(self) -> tuple[int, ...]:
        return tuple(rank for rank, report in enumerate(self.reports) if report is not None and report.staged)


@dataclass(frozen=True, slots=True)
class Closed:
    """This round is over. ``partial`` names ranks that gave files before and are missing now."""

    round: Round
    partial: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Late:
    """Files of ``rank`` came for a round that is already over."""

    seq: int
    rank: int


@dataclass(frozen=True, slots=True)
class Crossed:
    """Rank ``a`` gave files at ``seq_a`` where ``b`` gave none, and ``b`` at ``seq_b`` where ``a`` gave none."""

    a: int
    seq_a: int
    b: int
    seq_b: int


News = Closed | Late | Crossed

# (a, b, seq): rank a last gave files at seq in a round where rank b reported without any.
Alone = tuple[tuple[int, int, int], ...]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rounds:
    """All rounds of one attempt: ``passed[rank]`` is that rank's next seq, ``open`` the rounds from ``first`` on."""

    first: int
    passed: tuple[int, ...]
    open: tuple[Round, ...] = ()
    num_staged: int = 0
    ended: frozenset[int] = frozenset()
    missed: frozenset[int] = frozenset()
    gave: frozenset[int] = frozenset()
    alone: Alone = ()

    @classmethod
    def begin(cls, num_workers: int, first_seq: int = 0) -> Rounds:
        return cls(first_seq, (first_seq,) * num_workers)

    def report(self, rank: int, report: Report) -> tuple[Rounds, tuple[News, ...]]:
        """This rank has reported its next number."""
        assert report.seq == self.passed[rank], "a worker counts its reports one by one"
        passed = _put(self.passed, rank, report.seq + 1)
        gave = self.gave | {rank} if report.staged else self.gave
        missed = self.missed - {rank} if rank in self.missed else self.missed
        if report.seq < self.first:
            late = (Late(report.seq, rank),) if report.staged else ()
            return self._with(passed=passed, gave=gave, missed=missed), late
        opened, fresh = self._entered(rank, report)
        num_staged = self.num_staged + fresh
        return Rounds(self.first, passed, opened, num_staged, self.ended, missed, gave, self.alone)._closed()

    def end(self, rank: int) -> tuple[Rounds, tuple[News, ...]]:
        """This rank's function is over: nothing more will come from it."""
        return self._with(ended=self.ended | {rank})._closed()

    def _with(self, **changes: object) -> Rounds:
        return replace(self, **changes)  # type: ignore[arg-type]

    def _entered(self, rank: int, report: Report) -> tuple[tuple[Round, ...], int]:
        """The open rounds with this report in place, and whether its round now holds files for the first time."""
        index = report.seq - self.first
        size = len(self.passed)
        opened = self.open
        if index == len(opened):
            opened = (*opened, Round(report.seq, (None,) * size))
        old = opened[index]
        fresh = report.staged and not old.givers
        return _put(opened, index, Round(old.seq, _put(old.reports, rank, report))), int(fresh)

    def _closed(self) -> tuple[Rounds, tuple[News, ...]]:
        """Close from the oldest on what is complete, and what the windows no longer hold open."""
        rounds: Rounds = self
        news: list[News] = []
        while rounds.open:
            oldest = rounds.open[0]
            waiting = rounds._waiting_for(oldest.seq)
            if waiting and len(rounds.open) <= ROUND_WINDOW and rounds.num_staged <= CHECKPOINT_WINDOW:
                break
            rounds, told = rounds._close(oldest, waiting)
            news += told
        return rounds, tuple(news)

    def _waiting_for(self, seq: int) -> frozenset[int]:
        late = {rank for rank, next_seq in enumerate(self.passed) if next_seq <= seq}
        return frozenset(late - self.ended - self.missed) if late else frozenset()

    def _close(self, oldest: Round, waiting: frozenset[int]) -> tuple[Rounds, tuple[News, ...]]:
        missed = self.missed | waiting if waiting else self.missed
        givers = oldest.givers
        alone, crossed = _crossings(oldest, givers, self.alone) if givers else (self.alone, ())
        rounds = Rounds(
            self.first + 1,
            self.passed,
            self.open[1:],
            self.num_staged - bool(givers),
            self.ended,
            missed,
            self.gave,
            alone,
        )
        absent = {rank for rank in missed if oldest.reports[rank] is None} if givers else frozenset()
        return rounds, crossed or (Closed(oldest, tuple(sorted(absent & self.gave))),)


def _crossings(closing: Round, givers: tuple[int, ...], alone: Alone) -> tuple[Alone, tuple[Crossed, ...]]:
    """Remember who gave alone, and find who did so the other way round."""
    without = [rank for rank, report in enumerate(closing.reports) if report is not None and not report.staged]
    known = {(a, b): seq for a, b, seq in alone}
    pairs = [(a, b) for a in givers for b in without]
    crossed = tuple(Crossed(a, closing.seq, b, known[b, a]) for a, b in pairs if (b, a) in known)
    known |= dict.fromkeys(pairs, closing.seq)
    return tuple((a, b, seq) for (a, b), seq in known.items()), crossed


def _put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])
