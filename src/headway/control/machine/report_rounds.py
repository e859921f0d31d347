"""The rounds of reports: report number ``seq`` of every rank is one round, and its files are one checkpoint. Pure.

No rank waits for another. A round closes when every rank has passed it or has ended, and rounds close in order. The run
waits for an absent rank only until a timer expires (*overdue*), or until too many rounds are waiting for it. Then
the rank is *missed*: rounds do not wait for it again until it reports. A rank that has given files in this attempt is
never missed, so only the oldest round closes without it.

    rank 0   0C  1C  2C     3C  4C     C: with checkpoint files
    rank 1   ·   ·   ·  ⏰             only rank 0 reports: 0, 1 and 2 close at the timeout, 3 and 4 at once

Files of different rounds are never merged. Rounds that would make an inconsistent checkpoint are marked:

- *late*: files for a round that closed without them; they are added to its checkpoint.
- *partial*: the round closed without a rank that gives files. Such a rank has given or started to give files in this
  attempt, gave files to the newest checkpoint of an earlier attempt, or has tracked state. The round waits longer for
  it and is then dropped. A round of tracked state is dropped as well if a rank with tracked state has ended before it.
- *behind*: the round closed without a rank that has read fewer rows of the sharded datasets than the ranks that gave
  files. This rank is slow rather than absent, so rounds wait for it and its rows are not skipped. A rank that is ahead
  in at least one dataset reads in a different order and is not behind.
- *apart*: ranks gave tracked state of different steps under one report number, because some report more often.
- *crossed*: one save under two report numbers (see :mod:`headway.control.machine.save_consistency`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from headway.control.machine.save_consistency import NO_SAVES, CrossedSaves, SaveNumbers
from headway.core.checkpoints import differing_places
from headway.core.messages import Report, RowsTaken

FILES_WINDOW = 64  # rounds with files that may wait for a rank
GIVER_WINDOW = 8  # rounds with files that may wait for a rank that has already given files
SUSPECT_WINDOW = 2
ROUND_WINDOW = 1024
PENDING_WINDOW = 1 << 16  # rounds that may wait for pending files

NOBODY: frozenset[int] = frozenset()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReportRound:
    """The reports with one number, by rank; None if a rank has not reported."""

    seq: int
    reports: tuple[Report | None, ...]
    taken: RowsTaken = ()  # rows of the datasets read by the ranks that gave files
    places: tuple[tuple[int, str], ...] = ()  # the step of tracked state, by rank

    @property
    def reporters(self) -> tuple[int, ...]:
        return tuple(rank for rank, report in enumerate(self.reports) if report is not None)

    @property
    def givers(self) -> tuple[int, ...]:
        return tuple(rank for rank, report in enumerate(self.reports) if report is not None and report.staged)


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """A closed round.

    Args:
        round: The round.
        partial: Ranks that give files but are missing from this round.
        behind: Ranks that have read fewer rows of the datasets than the others.
        apart: Two ranks, with their steps, whose tracked state does not belong together.
        returned: Those of the ``partial`` ranks whose function has ended.
    """

    round: ReportRound
    partial: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    apart: tuple[tuple[int, str], ...] = ()
    returned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LateFiles:
    """Files that arrived after their round closed; ``round`` contains only their report."""

    round: ReportRound


News = ClosedRound | LateFiles | CrossedSaves


@dataclass(frozen=True, slots=True)
class SaveHabits:
    """Which ranks gave files to the newest checkpoint, and which did not."""

    give: frozenset[int] = frozenset()
    stay_away: frozenset[int] = frozenset()


UNKNOWN = SaveHabits()


@dataclass(frozen=True, slots=True)
class ReportRounds:
    """All rounds of one attempt.

    Args:
        first: Number of the oldest open round.
        passed: The next report number of each rank.
        open: The open rounds, from ``first`` on.
        num_staged: Number of open rounds that have files.
        ended: Ranks whose function has ended.
        missed: Ranks that rounds do not wait for.
        gave: Ranks that have given files in this attempt.
        expected: Ranks that are expected to give files because they did before this attempt.
        saves: Report numbers of the saves.
        owed: The reports whose files are pending, each with its rank.
        taken: Rows of the datasets that each rank has read, as last reported.
        places: Step of each rank's tracked state at its newest save; "" if unknown.
        excused: Ranks that rounds do not wait for, no matter how few rows they have read.
        tracking: Ranks that have tracked state.
    """

    first: int
    passed: tuple[int, ...]
    open: tuple[ReportRound, ...] = ()
    num_staged: int = 0
    ended: frozenset[int] = frozenset()
    missed: frozenset[int] = frozenset()
    gave: frozenset[int] = frozenset()
    expected: frozenset[int] = frozenset()
    saves: SaveNumbers = NO_SAVES
    owed: tuple[tuple[int, Report], ...] = ()
    taken: tuple[RowsTaken, ...] = ()
    places: tuple[str, ...] = ()
    excused: frozenset[int] = frozenset()
    tracking: frozenset[int] = frozenset()

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
        """The number of the oldest open round that has files."""
        return next((each.seq for each in self.open if each.givers), None) if self.num_staged else None

    @property
    def awaited(self) -> frozenset[int]:
        """Ranks that the oldest round with files waits for, and that are likely to report it."""
        if (seq := self.oldest_files) is None:
            return NOBODY
        waiting = self._waiting_for(seq)
        return waiting & (self.gave | self.expected | self._lagging(self.open[seq - self.first], waiting))

    def begin_save(self, rank: int, taken: RowsTaken = (), place: str | None = None) -> ReportRounds:
        """Record that this rank has started to stage files: it gives files, and will report."""
        known = _put(self.taken, rank, _furthest(taken, self.taken[rank]))
        places = self.places if place is None else _put(self.places, rank, place)
        return self._with(gave=self.gave | {rank}, missed=self.missed - {rank}, taken=known, places=places)

    def begin_tracking(self, rank: int) -> ReportRounds:
        """Record that this rank has tracked state: it and all other ranks give files from the first save on."""
        everybody = frozenset(range(len(self.passed)))
        return self._with(
            gave=self.gave | {rank},
            missed=self.missed - {rank},
            expected=self.expected | everybody,
            tracking=self.tracking | {rank},
        )

    def has_taken(self, rank: int, taken: RowsTaken) -> tuple[ReportRounds, tuple[News, ...]]:
        """Record how many rows of the datasets this rank has read."""
        return self._with(taken=_put(self.taken, rank, _furthest(taken, self.taken[rank])))._closed()

    def report(self, rank: int, report: Report) -> tuple[ReportRounds, tuple[News, ...]]:
        """Record the next report of this rank."""
        saves, crossed, gave = self.saves, None, self.gave
        owed = (*self.owed, (rank, report)) if report.pending else self.owed
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
            self.tracking,
        )
        if crossed is not None:
            return rounds, (crossed,)
        if not late:
            return rounds._closed()
        only = ReportRound(report.seq, _put((None,) * len(passed), rank, report))
        return rounds, (LateFiles(only),) if report.staged else ()

    def staged(self, rank: int, seq: int) -> tuple[ReportRounds, tuple[News, ...]]:
        """Record that the pending files of this rank's report are staged. Unless it was recorded, nothing changes."""
        promised = next((report for owner, report in self.owed if (owner, report.seq) == (rank, seq)), None)
        if promised is None:
            return self, ()
        rounds = self._with(owed=tuple(each for each in self.owed if each != (rank, promised)))
        report = promised._replace(staged=True, pending=False)
        if seq < self.first:
            return rounds, (LateFiles(ReportRound(seq, _put((None,) * len(self.passed), rank, report))),)
        opened, fresh = rounds._entered(rank, report)
        return rounds._with(open=opened, num_staged=self.num_staged + fresh)._closed()

    def end(self, rank: int) -> tuple[ReportRounds, tuple[News, ...]]:
        """Record that this rank's function has ended, so that it sends no more reports."""
        return self._with(ended=self.ended | {rank})._closed()

    def overdue(self, seq: int, *, long: bool) -> tuple[ReportRounds, tuple[News, ...]]:
        """Stop waiting for ranks that have never given files to report this round.

        ``long``: also stop waiting for ranks that lag, and for ranks that gave files in earlier attempts, because the
        program may have changed since then.
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
        """Close all rounds after all workers have exited. If any rank saves, rank 0 is expected to save as well."""
        unknown = frozenset({0}) - self.gave - self.missed
        return self._with(expected=self.expected | unknown)._closed(all_of_them=True)

    def _with(self, **changes: Any) -> ReportRounds:
        return replace(self, **changes)

    def _entered(self, rank: int, report: Report) -> tuple[tuple[ReportRound, ...], int]:
        """Return the open rounds including this report, and 1 if the report brings the first files of its round."""
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
        """Close rounds, oldest first: those that are complete, and those that hold up too many newer ones.

        At most ROUND_WINDOW rounds are open, of which at most FILES_WINDOW have files, or at most GIVER_WINDOW if the
        oldest open round waits for a rank that has given files in this attempt. If files of the oldest round are
        pending, up to PENDING_WINDOW rounds are open, because a report with files must not become one without.
        """
        rounds: ReportRounds = self
        news: list[News] = []
        while rounds.open:
            oldest = rounds.open[0]
            waiting = rounds._waiting_for(oldest.seq)
            window = GIVER_WINDOW if waiting & rounds.gave else FILES_WINDOW
            most = PENDING_WINDOW if rounds._owing(oldest.seq) else ROUND_WINDOW
            patient = len(rounds.open) <= most and rounds.num_staged <= window
            if waiting and patient and not all_of_them:
                break
            rounds, closed = rounds._close(oldest, waiting)
            news.append(closed)
        return rounds, tuple(news)

    def _waiting_for(self, seq: int) -> frozenset[int]:
        behind = {rank for rank, next_seq in enumerate(self.passed) if next_seq <= seq}
        owing = self._owing(seq)
        if not behind and not owing:
            return NOBODY
        away = self.missed - self._lagging(self.open[seq - self.first], self.missed)
        return frozenset(behind - self.ended - away) | owing

    def _owing(self, seq: int) -> frozenset[int]:
        """Return the ranks whose files for this round are pending."""
        return frozenset(rank for rank, report in self.owed if report.seq == seq) if self.owed else NOBODY

    def _lagging(self, at: ReportRound, ranks: frozenset[int]) -> frozenset[int]:
        """Return the ranks that are known to have read fewer rows than the ranks that gave files to this round."""
        if not at.taken:
            return NOBODY
        return frozenset(rank for rank in ranks - self.excused if _is_behind(self.taken[rank], at.taken))

    def _close(self, oldest: ReportRound, waiting: frozenset[int]) -> tuple[ReportRounds, ClosedRound]:
        holds_files = bool(oldest.givers)
        lagging = self._lagging(oldest, waiting) if waiting and holds_files else NOBODY
        missed = self.missed | (waiting - lagging - self.gave) if waiting else self.missed
        absent = {rank for rank in missed | waiting if oldest.reports[rank] is None} if holds_files else set()
        absent |= self._owing(oldest.seq)
        if oldest.places:  # tracked state is useless unless it is complete
            absent |= self.tracking - set(oldest.givers)
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
            self.tracking,
        )
        partial = (absent | lagging) & (self.gave | self.expected)
        returned = tuple(sorted(partial & self.ended))
        return rounds, ClosedRound(
            oldest, tuple(sorted(partial)), tuple(sorted(lagging)), differing_places(oldest.places), returned
        )


def _furthest(one: RowsTaken, other: RowsTaken) -> RowsTaken:
    if one == other:
        return one
    known, told = dict(one), dict(other)
    return tuple((name, max(known.get(name, 0), told.get(name, 0))) for name in sorted(known | told))


def _is_behind(rank: RowsTaken, others: RowsTaken) -> bool:
    """Whether a rank has read fewer rows than others in some dataset, and more in none."""
    if rank == others:
        return False
    known, told = dict(rank), dict(others)
    ahead = any(far > told.get(name, 0) for name, far in known.items())
    return not ahead and any(far > known.get(name, 0) for name, far in told.items())


def _put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])
