"""Which reports belong together, and when a round of them is over. Pure.

Report number ``seq`` of every rank is one round. Nobody waits for anybody: a round closes when every rank has
passed it or ended, and rounds close in order. A rank that stays away is waited for only so long: with more than
``CHECKPOINT_WINDOW`` checkpoints open, the oldest closes without it, and a rank once missed is not waited for again
until it reports.

    rank 0   0C  1C  2C  3C            C: with checkpoint files
    rank 1   ·   ·   ·                 only rank 0 reports: 0 closes when 2C arrives, then 1, 2, 3 at once

Files of different rounds are never merged. What would be a lie is said instead:

- *Late*: files for a round that closed without them; its checkpoint is extended by them.
- *partial*: a round closed without a rank that gave files before, which is waited for longer (``GIVER_WINDOW``);
  such a round is dropped.
- *Crossed*: rank a saved where b passed without saving, and b where a did: one save under two numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from headway.core.messages import Report

CHECKPOINT_WINDOW = 2
GIVER_WINDOW = 8
ROUND_WINDOW = 1024
MEMORY = 256  # how many saves back we can tell who took part

T = TypeVar("T")


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
    """Files came for a round that had closed without them; ``round`` holds the one report that brought them."""

    round: Round


@dataclass(frozen=True, slots=True)
class Crossed:
    """Rank ``a`` saved at ``seq_a`` where ``b`` passed without, and ``b`` at ``seq_b`` where ``a`` passed without.

    ``suspects`` are the rounds since then that only one of them gave files to: halves, for all we know.
    """

    a: int
    seq_a: int
    b: int
    seq_b: int
    suspects: tuple[int, ...]


News = Closed | Late | Crossed


@dataclass(frozen=True, slots=True)
class Saves:
    """Who has saved where, as far back as MEMORY; ``alone`` holds (a, b, seq): a saved at seq where b did not."""

    seqs: tuple[int, ...] = ()
    givers: tuple[frozenset[int], ...] = ()
    alone: tuple[tuple[int, int, int], ...] = ()

    def report(self, rank: int, report: Report, passed: tuple[int, ...]) -> tuple[Saves, tuple[Crossed, ...]]:
        """Note a report in whatever order the ranks come; ``passed`` says who has been past it."""
        seq = report.seq
        index = bisect_left(self.seqs, seq)
        known = index < len(self.seqs) and self.seqs[index] == seq
        givers = self.givers[index] if known else frozenset()
        if not report.staged:
            return self._noted([(giver, rank) for giver in givers], seq) if givers else (self, ())
        without = [b for b, next_seq in enumerate(passed) if next_seq > seq and b != rank and b not in givers]
        saves = Saves(
            (*self.seqs[:index], seq, *self.seqs[index + known :])[-MEMORY:],
            (*self.givers[:index], givers | {rank}, *self.givers[index + known :])[-MEMORY:],
            self.alone,
        )
        return saves._noted([(rank, b) for b in without], seq)

    def _noted(self, pairs: list[tuple[int, int]], seq: int) -> tuple[Saves, tuple[Crossed, ...]]:
        if not pairs:
            return self, ()
        known = {(a, b): at for a, b, at in self.alone}
        crossed = [
            Crossed(a, seq, b, known[b, a], self._halves(a, b, known[b, a])) for a, b in pairs if (b, a) in known
        ]
        known |= dict.fromkeys(pairs, seq)
        return replace(self, alone=tuple((a, b, at) for (a, b), at in known.items())), tuple(crossed)

    def _halves(self, a: int, b: int, since: int) -> tuple[int, ...]:
        """Rounds that one of the two gave files to and the other did not."""
        both = {a, b}
        saves = zip(self.seqs, self.givers, strict=True)
        return tuple(seq for seq, givers in saves if seq >= since and len(givers & both) == 1)


_NO_SAVES = Saves()


@dataclass(frozen=True, slots=True)
class Rounds:
    """All rounds of one attempt: ``passed[rank]`` is that rank's next seq, ``open`` the rounds from ``first`` on."""

    first: int
    passed: tuple[int, ...]
    open: tuple[Round, ...] = ()
    num_staged: int = 0  # open rounds that hold files
    ended: frozenset[int] = frozenset()
    missed: frozenset[int] = frozenset()
    gave: frozenset[int] = frozenset()
    saves: Saves = _NO_SAVES

    @classmethod
    def begin(cls, num_workers: int, first_seq: int = 0) -> Rounds:
        return cls(first_seq, (first_seq,) * num_workers)

    def report(self, rank: int, report: Report) -> tuple[Rounds, tuple[News, ...]]:
        """This rank has reported its next number."""
        assert report.seq == self.passed[rank], "a worker counts its reports one by one"
        saves, crossed = self.saves.report(rank, report, self.passed)
        passed = _put(self.passed, rank, report.seq + 1)
        gave = self.gave | {rank} if report.staged else self.gave
        missed = self.missed - {rank} if rank in self.missed else self.missed
        late = report.seq < self.first
        opened, fresh = (self.open, 0) if late else self._entered(rank, report)
        rounds = Rounds(self.first, passed, opened, self.num_staged + fresh, self.ended, missed, gave, saves)
        if crossed:
            return rounds, crossed
        if not late:
            return rounds._closed()
        only = Round(report.seq, _put((None,) * len(passed), rank, report))
        return rounds, (Late(only),) if report.staged else ()

    def end(self, rank: int) -> tuple[Rounds, tuple[News, ...]]:
        """This rank's function is over: nothing more will come from it."""
        return self._with(ended=self.ended | {rank})._closed()

    def _with(self, **changes: Any) -> Rounds:
        return replace(self, **changes)

    def _entered(self, rank: int, report: Report) -> tuple[tuple[Round, ...], int]:
        """The open rounds with this report in place, and whether its round now holds files for the first time."""
        index = report.seq - self.first
        opened = self.open
        if index == len(opened):
            opened = (*opened, Round(report.seq, (None,) * len(self.passed)))
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
            window = GIVER_WINDOW if waiting & rounds.gave else CHECKPOINT_WINDOW
            if waiting and len(rounds.open) <= ROUND_WINDOW and rounds.num_staged <= window:
                break
            rounds, closed = rounds._close(oldest, waiting)
            news.append(closed)
        return rounds, tuple(news)

    def _waiting_for(self, seq: int) -> frozenset[int]:
        behind = {rank for rank, next_seq in enumerate(self.passed) if next_seq <= seq}
        return frozenset(behind - self.ended - self.missed) if behind else frozenset()

    def _close(self, oldest: Round, waiting: frozenset[int]) -> tuple[Rounds, Closed]:
        missed = self.missed | waiting if waiting else self.missed
        holds_files = bool(oldest.givers)
        absent = {rank for rank in missed if oldest.reports[rank] is None} if holds_files else frozenset()
        rounds = Rounds(
            self.first + 1,
            self.passed,
            self.open[1:],
            self.num_staged - holds_files,
            self.ended,
            missed,
            self.gave,
            self.saves,
        )
        return rounds, Closed(oldest, tuple(sorted(absent & self.gave)))


def _put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])
