"""The watch looks from outside whether each rank gets on, and finds out what holds it up when it does not.

    progress ──▶ silence ──▶ half of stall_warn_s: what has it computed so far?
       ▲                 ──▶ stall_warn_s: three looks at every rank, a moment apart ──▶ a diagnosis, or none
       └── one of those concerned gets on: it is over ◀── again after a while ◀────────────────┘

Every rank has a clock of its own: that others get on says nothing about it. A clock begins anew with a sign of life:
a message that tells of progress, or CPU time that the rank's threads and processes have used. Where our own thread was
not let for a while (a suspended machine), all clocks begin anew.

Looking is asking the rank itself (Dump), and the system about its processes; one that does not answer is looked at from
outside. All of it belongs to the controller's thread, and none of it waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from headway.core.config import FailureConfig
from headway.core.messages import Frame, Heartbeat, Report, StackDump, ToController
from headway.diagnosis.stacks import from_faulthandler
from headway.diagnosis.verdict import Diagnosis, Rank, Sample, diagnose
from headway.engine.process_stats import OutsideStacks, ProcessStats

NUM_LOOKS = 3
BETWEEN_S = 0.75
AWAY_S = 2.0  # later than we wanted to look: we were stopped, and so were others
REPORTING = 3  # reports within the time that makes a silence
LEFT_BEHIND = 1.6  # times as long as a silence, for a rank that computes and for which nobody waits
PATIENCE = 1.5  # times as long as the longest silence that ended by itself
PHASE_S = 60.0  # in one phase, until we mention it; then after twice as long, and so on


class RankProbe(Protocol):
    """How the ranks can be looked at; by rank."""

    def ask(self, rank: int, index: int) -> None: ...
    def vital(self, rank: int) -> ProcessStats | None: ...
    def outside(self, rank: int) -> OutsideStacks | None: ...


@dataclass
class _Watched:
    """One rank: when it got on last, and what was seen of it since we began to look.

    Args:
        since: When it told of progress last.
        alive: When it was last seen to compute.
        in_step: How often each rank had reported when this one did so last.
        before: A look without a stack, some time before the others.
    """

    since: float
    alive: float
    in_step: tuple[int, ...] = ()
    reports: deque[float] = field(default_factory=lambda: deque(maxlen=REPORTING))
    num_reports: int = 0
    before: Sample | None = None
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    over: bool = False
    left: bool = False
    samples: list[Sample] = field(default_factory=list)
    answer: StackDump | None = None
    stacks: str = ""  # the newest that we have of it, as text
    outside: OutsideStacks | None = None
    mention_s: float = 0.0  # a phase that lasts for so long


class Watchdog:
    """``found`` is told a diagnosis when there is one and None when a stall is over; with how long it has lasted.

    ``lasts`` is told of phases that do, with who is in them and for how long: no stall, but nobody shall wonder.
    """

    def __init__(
        self,
        config: FailureConfig,
        patients: RankProbe,
        found: Callable[[Diagnosis | None, float], None],
        lasts: Callable[[str, list[int], float], None],
    ) -> None:
        waits = [s for s in (config.stall_warn_s, config.stall_timeout_s) if s is not None]
        self._config = config
        self._after_s = min(waits) if waits else None
        self._patients = patients
        self._found = found
        self._lasts = lasts
        self._ranks: list[_Watched] = []
        self._next: float | None = None  # when we look again
        self._begun = False  # whether we have seen how much everybody has computed so far
        self._num_looks = 0  # of this silence
        self._index = 0
        self._longest_s = 0.0  # silence that ended by itself
        self._concerned: frozenset[int] = frozenset()  # by the stall that we know of
        self.current: Diagnosis | None = None

    def begin(self, num_workers: int, now: float) -> None:
        """All ranks have been told to start."""
        self._ranks = [_Watched(now, now, mention_s=PHASE_S) for _ in range(num_workers)]
        self._concerned = frozenset()
        self._rest(now)

    def end(self) -> None:
        for watched in self._ranks:
            _drop_outside(watched)
        self._ranks = []
        self._next = None
        self.current = None

    # --- what comes in ---

    def heard(self, rank: int, message: ToController, now: float) -> None:
        if rank >= len(self._ranks):
            return
        watched = self._ranks[rank]
        match message:
            case StackDump(index=index):
                watched.stacks = message.text
                if index == self._index:
                    watched.answer = message
                if not _same(watched.heartbeat, message.heartbeat):
                    self._got_on(rank, now)
                watched.heartbeat = message.heartbeat
            case Heartbeat():
                if not _same(watched.heartbeat, message):
                    self._got_on(rank, now)
                watched.heartbeat = message
            case Report():
                watched.reports.append(now)
                watched.num_reports += 1
                self._got_on(rank, now)
                watched.in_step = tuple([each.num_reports for each in self._ranks])
            case _:
                self._got_on(rank, now)

    def over(self, rank: int, *, left: bool = False) -> None:
        """Its function has returned, or its process has ended."""
        if rank < len(self._ranks):
            self._ranks[rank].over = True
            self._ranks[rank].left = left

    def stacks(self) -> dict[int, str]:
        """What each rank was doing when we looked last, told by itself or seen from outside."""
        return {rank: watched.stacks for rank, watched in enumerate(self._ranks) if watched.stacks}

    def _got_on(self, rank: int, now: float) -> None:
        watched = self._ranks[rank]
        silent_s = now - watched.since
        watched.since, watched.mention_s = now, PHASE_S
        if self.current is not None and rank in self._concerned:
            self._longest_s = max(self._longest_s, silent_s)
            self._found(None, silent_s)
            self.current = None
            self._rest(now)

    def _rest(self, now: float) -> None:
        self._num_looks = 0
        for watched in self._ranks:
            watched.samples.clear()
            watched.before = None
            _drop_outside(watched)
        self._begun = False
        self._next = now + self._threshold_s / 2 if self._after_s is not None else None

    # --- looking ---

    @property
    def _threshold_s(self) -> float:
        assert self._after_s is not None
        return max(self._after_s, PATIENCE * self._longest_s)

    def wait_s(self, now: float) -> float | None:
        """How long until we want to look."""
        return None if self._next is None or not self._ranks else max(0.0, self._next - now)

    def look(self, now: float) -> None:
        """To be called whenever ``wait_s`` is over; cheap at any other time."""
        if self._next is None or now < self._next or not self._ranks:
            return
        if now - self._next > AWAY_S:
            return self._forget(now)
        if self._num_looks:
            self._take_samples(now)
        elif not self._is_time(now):
            return
        if self._num_looks == NUM_LOOKS:
            return self._conclude(now)
        self._num_looks += 1
        self._index += 1
        for rank, watched in enumerate(self._ranks):
            if not watched.left:
                watched.answer = None
                self._patients.ask(rank, self._index)
        self._next = now + BETWEEN_S

    def _forget(self, now: float) -> None:
        """Nobody has let us look for a while: what we know is of another time."""
        for watched in self._ranks:
            watched.since = watched.alive = now
        self._rest(now)

    def _is_time(self, now: float) -> bool:
        """Whether somebody has been silent for long enough; half-way we see what everybody has computed so far."""
        silent_since = self._silent_since()
        silent_s = 0.0 if silent_since is None else now - silent_since
        if self._begun and silent_s >= self._threshold_s:
            return True
        if silent_s < self._threshold_s / 2:
            self._begun = False
            self._next = now - silent_s + self._threshold_s / 2
            return False
        if not self._begun:
            self._begun = True
            for rank, watched in enumerate(self._ranks):
                watched.before = self._sample(rank, now)
        self._next = now + max(self._threshold_s / 2, self._threshold_s - silent_s)
        return False

    def _sample(self, rank: int, now: float, main: tuple[Frame, ...] = (), *, answered: bool = False) -> Sample:
        vital = self._patients.vital(rank) or ProcessStats()
        return Sample(
            vital.state,
            vital.cpu_s,
            vital.all_s,
            now,
            main,
            answered,
            vital.delay_s,
            max(vital.tree_s, vital.all_s),
            moved_bytes=vital.moved_bytes,
        )

    def _silent_since(self) -> float | None:
        """Since when the rank has been silent that has been for the longest time; in a phase it may be stopped, too."""
        return min((watched.since for watched in self._ranks if not watched.over), default=None)

    def _take_samples(self, now: float) -> None:
        for rank, watched in enumerate(self._ranks):
            if watched.left:
                continue
            answer = watched.answer
            main = answer.main if answer is not None else ()
            if answer is None and watched.outside is not None:
                written, seen = watched.outside.read()
                main, watched.stacks = from_faulthandler(written), seen or written or watched.stacks
                watched.outside = None
            if answer is None and self._num_looks == NUM_LOOKS - 1:
                watched.outside = self._patients.outside(rank)
            sample = self._sample(rank, now, main, answered=answer is not None)
            watched.samples.append(replace(sample, phase=answer.phase if answer is not None else ""))

    def _conclude(self, now: float) -> None:
        ranks = [self._seen(number, now) for number, each in enumerate(self._ranks) if not each.left]
        found = diagnose(ranks)
        if found is None and self.current is not None:
            self._found(None, self._silent_s(self.current.ranks, now))
        if found is not None:
            silent_s = self._silent_s(found.ranks, now)
            self._concerned = frozenset(found.ranks) | {each.rank for each in ranks if each.waits and each.silent}
            self._found(found, silent_s)
        elif self._config.stall_warn_s is not None:
            self._mention([rank for rank in ranks if rank.samples and not rank.over], now)
        self.current = found
        for rank in ranks:
            if rank.samples and (rank.alive or rank.computes or rank.transfers):
                self._ranks[rank.rank].alive = now
        self._rest(now)
        again_s = self._config.stall_timeout_s
        if found is not None and again_s is not None:
            self._begun = True
            self._next = now + max(BETWEEN_S, min(self._threshold_s, again_s - silent_s))

    def _seen(self, number: int, now: float) -> Rank:
        """What we know of a rank, and whether that makes a silence."""
        watched = self._ranks[number]
        rank = Rank(number, True, tuple(watched.samples), watched.heartbeat, watched.over, watched.before)
        if not watched.samples:
            return rank
        if rank.computes:
            silent_s = (now - watched.since) * (1 - rank.starved)
        else:
            silent_s = now - max(watched.since, watched.alive)
        return replace(
            rank,
            silent=silent_s >= self._threshold_s,
            reporting=len(watched.reports) == REPORTING and now - watched.reports[0] < 2 * self._threshold_s,
            left_behind=silent_s >= LEFT_BEHIND * self._threshold_s and self._is_left_behind(number),
        )

    def _is_left_behind(self, number: int) -> bool:
        """Whether somebody has reported on and on with whom this rank was in step when it got on last."""
        watched = self._ranks[number]
        return watched.num_reports > 0 and any(
            other.num_reports - watched.num_reports >= REPORTING
            and abs(before - watched.num_reports) <= 1
            and other.reports[0] > watched.since
            for other, before in zip(self._ranks, watched.in_step, strict=False)
        )

    def _silent_s(self, blamed: Sequence[int], now: float) -> float:
        """For how long those have stood still who are to blame; where they have left, those who wait for them."""
        there = [self._ranks[rank] for rank in blamed if not self._ranks[rank].over]
        silent = [max(each.since, each.alive) for each in there] or [
            each.since for each in self._ranks if not each.over and now - each.since >= self._threshold_s
        ]
        return now - min(silent, default=now)

    def _mention(self, ranks: Sequence[Rank], now: float) -> None:
        """Phases that have lasted for long."""
        due: dict[str, list[int]] = {}
        for rank in ranks:
            watched = self._ranks[rank.rank]
            if rank.phase and now - watched.since >= watched.mention_s:
                due.setdefault(rank.phase, []).append(rank.rank)
                watched.mention_s = 2 * (now - watched.since)
        for phase, numbers in due.items():
            self._lasts(phase, numbers, now - max(self._ranks[number].since for number in numbers))


def _drop_outside(watched: _Watched) -> None:
    if watched.outside is not None:
        watched.outside.close()
        watched.outside = None


def _same(a: Heartbeat, b: Heartbeat) -> bool:
    """Whether nothing has changed that shows progress."""
    return _progress(a) == _progress(b)


def _progress(heartbeat: Heartbeat) -> Heartbeat:
    return replace(heartbeat, rss_bytes=0, in_loader=False, wait=None)
