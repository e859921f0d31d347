"""Which reports belong together, and when a round of them is over. Pure.

Report number ``seq`` of every rank is one round. Nobody waits for anybody: a round closes when every rank has
passed it or ended, and rounds close in order. A rank that stays away is waited for only so long: until its time is
over (*overdue*), or until too many rounds wait for it. A rank once missed is not waited for again until it reports,
unless it gives files: then only the oldest round is over.

    rank 0   0C  1C  2C     3C  4C     C: with checkpoint files
    rank 1   ·   ·   ·  ⏰             only rank 0 reports: 0, 1 and 2 close when time is over, 3 and 4 at once

Files of different rounds are never merged. What would be a lie is said instead:

- *Late*: files for a round that closed without them; its checkpoint is extended by them.
- *partial*: a round closed without a rank that gives files: it has given some, or begun to, or gave to the newest
  checkpoint of an earlier attempt, or state is tracked. It is waited for longer, and then the round is dropped.
- *behind*: a round closed without a rank that had not come as far as those who gave files, in the datasets that are
  split among the ranks. It does not stay away, it comes later: it is waited for, and its rows are not passed over. A
  rank that is ahead of them in one dataset uses the others in its own way, and is not behind.
- *apart*: ranks gave state that saves itself, of different places in training, under one number: some report more often
  than others. Together they would be the state of no step.
- *Crossed*: one save under two numbers (see :mod:`headway.control.machine.save_consistency`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from headway.control.machine.save_consistency import NO_SAVES, CrossedSaves, SaveNumbers
from headway.core.messages import Report, RowsTaken

FILES_WINDOW = 64  # rounds with files that may wait for a rank
GIVER_WINDOW = 8  # of them, for one that has given files before
SUSPECT_WINDOW = 2
ROUND_WINDOW = 1024

NOBODY: frozenset[int] = frozenset()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReportRound:
    """One report number over all ranks; None where a rank has not reported (yet)."""

    seq: int
    reports: tuple[Report | None, ...]
    taken: RowsTaken = ()  # how far those who gave files had come in the datasets
    places: tuple[tuple[int, str], ...] = ()  # where state that saves itself stood, by rank

    @property
    def givers(self) -> tuple[int, ...]:
        return tuple(rank for rank, report in enumerate(self.reports) if report is not None and report.staged)


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """This round is over. ``partial`` names ranks that give files and are missing, ``behind`` those that lag.

    ``apart``: where two ranks stood whose files do not fit together.
    """

    round: ReportRound
    partial: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    apart: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class LateFiles:
    """Files came for a round that had closed without them; ``round`` holds the one report that brought them."""

    round: ReportRound


News = ClosedRound | LateFiles | CrossedSaves


@dataclass(frozen=True, slots=True)
class SaveHabits:
    """What the newest checkpoint tells of the ranks: who gave files to it, and who stayed away."""

    give: frozenset[int] = frozenset()
    stay_away: frozenset[int] = frozenset()


UNKNOWN = SaveHabits()


@dataclass(frozen=True, slots=True)
class ReportRounds:
    """All rounds of one attempt: ``passed[rank]`` is that rank's next seq, ``open`` the rounds from ``first`` on."""

    first: int
    passed: tuple[int, ...]
    open: tuple[ReportRound, ...] = ()
    num_staged: int = 0  # open rounds that hold files
    ended: frozenset[int] = frozenset()
    missed: frozenset[int] = frozenset()
    gave: frozenset[int] = frozenset()
    expected: frozenset[int] = frozenset()  # to give files, because they did before this attempt
    saves: SaveNumbers = NO_SAVES
    owed: frozenset[tuple[int, int]] = frozenset()  # (rank, seq): files that a report has promised
    taken: tuple[RowsTaken, ...] = ()  # how far each rank has come in the datasets, as far as we know
    places: tuple[str, ...] = ()  # where each rank's state that saves itself stood at its newest save; "" if unknown
    excused: frozenset[int] = frozenset()  # however few they take: nobody can wait for them for ever

    @classmethod
    def begin(cls, num_workers: int, first_seq: int = 0, habits: SaveHabits = UNKNOWN) -> ReportRounds:
        nothing = (0,) * num_workers
        passed = (first_seq,) * num_workers
        saves = SaveNumbers(nothing)
        taken: tuple[RowsTaken, ...] = ((),) * num_workers
        return cls(
            first_seq,
            passed,
            missed=habits.stay_away,
            expected=habits.give,
            saves=saves,
            taken=taken,
            places=("",) * num_workers,
        )

    @property
    def oldest_files(self) -> int | None:
        """The number of the oldest open round that holds files."""
        return next((each.seq for each in self.open if each.givers), None) if self.num_staged else None

    @property
    def awaited(self) -> frozenset[int]:
        """Ranks that the oldest round with files waits for, and that will come as far as we know."""
        if (seq := self.oldest_files) is None:
            return NOBODY
        waiting = self._waiting_for(seq)
        return waiting & (self.gave | self.expected | self._lagging(self.open[seq - self.first], waiting))

    def begin_save(self, rank: int, taken: RowsTaken = (), place: str | None = None) -> ReportRounds:
        """This rank has begun to lay down files: it is one that gives some, and will report."""
        known = _put(self.taken, rank, _furthest(taken, self.taken[rank]))
        places = self.places if place is None else _put(self.places, rank, place)
        return self._with(gave=self.gave | {rank}, missed=self.missed - {rank}, taken=known, places=places)

    def begin_tracking(self, rank: int) -> ReportRounds:
        """This rank's state saves itself: it gives files, and so will all others, the first time included."""
        everybody = frozenset(range(len(self.passed)))
        return self._with(gave=self.gave | {rank}, missed=self.missed - {rank}, expected=self.expected | everybody)

    def has_taken(self, rank: int, taken: RowsTaken) -> tuple[ReportRounds, tuple[News, ...]]:
        """This rank has come so far in the datasets."""
        return self._with(taken=_put(self.taken, rank, _furthest(taken, self.taken[rank])))._closed()

    def report(self, rank: int, report: Report) -> tuple[ReportRounds, tuple[News, ...]]:
        """This rank has reported its next number."""
        saves, crossed, gave = self.saves, None, self.gave
        owed = self.owed | {(rank, report.seq)} if report.pending else self.owed
        if report.staged or report.pending:
            saves, crossed = saves.made(rank, report.seq, SUSPECT_WINDOW)
            gave = gave | {rank}
        passed = _put(self.passed, rank, report.seq + 1)
        missed = self.missed - {rank} if rank in self.missed else self.missed
        late = report.seq < self.first
        opened, fresh = (self.open, 0) if late else self._entered(rank, report)
        num_staged = self.num_staged + fresh
        rounds = ReportRounds(
            self.first,
            passed,
            opened,
            num_staged,
            self.ended,
            missed,
            gave,
            self.expected,
            saves,
            owed,
            self.taken,
            self.places,
            self.excused,
        )
        if crossed is not None:
            return rounds, (crossed,)
        if not late:
            return rounds._closed()
        only = ReportRound(report.seq, _put((None,) * len(passed), rank, report))
        return rounds, (LateFiles(only),) if report.staged else ()

    def staged(self, rank: int, seq: int) -> tuple[ReportRounds, tuple[News, ...]]:
        """The files are there that this rank has promised."""
        rounds = self._with(owed=self.owed - {(rank, seq)})
        if seq < self.first:
            report = Report(seq, 0.0, b"{}", staged=True)
            return rounds, (LateFiles(ReportRound(seq, _put((None,) * len(self.passed), rank, report))),)
        promised = self.open[seq - self.first].reports[rank]
        assert promised is not None, "a report goes before its files"
        opened, fresh = rounds._entered(rank, promised._replace(staged=True, pending=False))
        return rounds._with(open=opened, num_staged=self.num_staged + fresh)._closed()

    def end(self, rank: int) -> tuple[ReportRounds, tuple[News, ...]]:
        """This rank's function is over: nothing more will come from it."""
        return self._with(ended=self.ended | {rank})._closed()

    def overdue(self, seq: int, *, long: bool) -> tuple[ReportRounds, tuple[News, ...]]:
        """The time is over for ranks that never gave files to come to this round.

        ``long``: also for those that lag, and for those that gave some in earlier attempts; the program may be another
        one by now.
        """
        if not self.open or seq < self.first:
            return self, ()
        expected = frozenset() if long else self.expected
        absent = self._waiting_for(seq) - self.gave - expected
        if long:
            return self._with(missed=self.missed | absent, expected=expected, excused=self.excused | absent)._closed()
        lagging = self._lagging(self.open[seq - self.first], absent)
        return self._with(missed=self.missed | (absent - lagging))._closed()

    def conclude(self) -> tuple[ReportRounds, tuple[News, ...]]:
        """Everybody has left: whoever is missing stays missing. Where some save, rank 0 is taken to be among them."""
        unknown = frozenset({0}) - self.gave - self.missed
        return self._with(expected=self.expected | unknown)._closed(all_of_them=True)

    def _with(self, **changes: Any) -> ReportRounds:
        return replace(self, **changes)

    def _entered(self, rank: int, report: Report) -> tuple[tuple[ReportRound, ...], int]:
        """The open rounds with this report in place, and whether its round now holds files for the first time."""
        index = report.seq - self.first
        opened = self.open
        if index == len(opened):
            opened = (*opened, ReportRound(report.seq, (None,) * len(self.passed)))
        old = opened[index]
        fresh = report.staged and not old.givers
        gives = old.reports[rank] is None and (report.staged or report.pending)
        taken = _furthest(old.taken, self.taken[rank]) if gives else old.taken
        places = (*old.places, (rank, self.places[rank])) if gives and self.places[rank] else old.places
        return _put(opened, index, ReportRound(old.seq, _put(old.reports, rank, report), taken, places)), int(fresh)

    def _closed(self, *, all_of_them: bool = False) -> tuple[ReportRounds, tuple[News, ...]]:
        """Close from the oldest on what is complete, and what the windows no longer hold open."""
        rounds: ReportRounds = self
        news: list[News] = []
        while rounds.open:
            oldest = rounds.open[0]
            waiting = rounds._waiting_for(oldest.seq)
            window = GIVER_WINDOW if waiting & rounds.gave else FILES_WINDOW
            patient = len(rounds.open) <= ROUND_WINDOW and rounds.num_staged <= window
            if waiting and patient and not all_of_them:
                break
            rounds, closed = rounds._close(oldest, waiting)
            news.append(closed)
        return rounds, tuple(news)

    def _waiting_for(self, seq: int) -> frozenset[int]:
        behind = {rank for rank, next_seq in enumerate(self.passed) if next_seq <= seq}
        owing = frozenset(rank for rank, number in self.owed if number == seq) if self.owed else frozenset()
        if not behind and not owing:
            return NOBODY
        away = self.missed - self._lagging(self.open[seq - self.first], self.missed)
        return frozenset(behind - self.ended - away) | owing

    def _lagging(self, at: ReportRound, ranks: frozenset[int]) -> frozenset[int]:
        """Those that are not known to have come as far in the datasets as those who gave files to this round."""
        if not at.taken:
            return NOBODY
        return frozenset(rank for rank in ranks - self.excused if _is_behind(self.taken[rank], at.taken))

    def _close(self, oldest: ReportRound, waiting: frozenset[int]) -> tuple[ReportRounds, ClosedRound]:
        holds_files = bool(oldest.givers)
        lagging = self._lagging(oldest, waiting) if waiting and holds_files else NOBODY
        missed = self.missed | (waiting - lagging - self.gave) if waiting else self.missed
        absent = {rank for rank in missed | waiting if oldest.reports[rank] is None} if holds_files else set()
        absent |= {rank for rank, number in self.owed if number == oldest.seq}
        rounds = ReportRounds(
            self.first + 1,
            self.passed,
            self.open[1:],
            self.num_staged - holds_files,
            self.ended,
            missed,
            self.gave,
            self.expected,
            self.saves,
            self.owed,
            self.taken,
            self.places,
            self.excused,
        )
        partial = tuple(sorted((absent | lagging) & (self.gave | self.expected)))
        return rounds, ClosedRound(oldest, partial, tuple(sorted(lagging)), _apart(oldest.places))


def _furthest(one: RowsTaken, other: RowsTaken) -> RowsTaken:
    if one == other:
        return one
    known, told = dict(one), dict(other)
    return tuple((name, max(known.get(name, 0), told.get(name, 0))) for name in sorted(known | told))


def _is_behind(rank: RowsTaken, others: RowsTaken) -> bool:
    """Whether a rank is less far in some dataset, and further in none."""
    if rank == others:
        return False
    known, told = dict(rank), dict(others)
    ahead = any(far > told.get(name, 0) for name, far in known.items())
    return not ahead and any(far > known.get(name, 0) for name, far in told.items())


def _apart(places: tuple[tuple[int, str], ...]) -> tuple[tuple[int, str], ...]:
    """The first rank and one that stood elsewhere."""
    first, *others = sorted(places) or [(0, "")]
    return next(((first, other) for other in others if other[1] != first[1]), ())


def _put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])
