"""The watchdog detects ranks that make no progress, and determines why.

    progress ──▶ silence ──▶ half of stall_warn_s: read the CPU time it has used so far
       ▲                 ──▶ stall_warn_s: three samples of every rank, a moment apart ──▶ a diagnosis, or none
       └── one of these ranks makes progress: the stall has ended ◀─ again after a while ◀────┘

Every rank has its own clock, because the progress of one rank says nothing about another. A clock restarts on a message
that shows progress, or if the rank's threads and processes have used CPU time. If the controller's own thread did not
run for a while (because the machine was suspended, for example), all clocks restart.

A sample consists of the rank's answer to RequestStacks and of the system's statistics on its processes; a rank that
does not answer is sampled from outside. Everything runs in the controller's thread, and nothing blocks.
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
AWAY_S = 2.0  # if a sample is later than this, this process was stopped, and so were the workers
REPORTING = 3  # a rank with this many recent reports counts as reporting
LEFT_BEHIND = 1.6  # times the silence threshold, for a rank that computes and that no rank waits for
PATIENCE = 1.5  # times the longest silence that ended by itself
PHASE_S = 60.0  # time in one phase before it is logged; the interval doubles each time


class RankProbe(Protocol):
    """Access to the ranks, by number."""

    def ask(self, rank: int, index: int) -> None: ...
    def vital(self, rank: int) -> ProcessStats | None: ...
    def outside(self, rank: int) -> OutsideStacks | None: ...


@dataclass
class _Watched:
    """One rank: its last progress, and the samples taken since it became silent.

    Args:
        since: The time of its last progress.
        alive: The time when it was last seen computing or transferring files.
        in_step: The number of reports of each rank at the time of this rank's last report.
        before: A sample without a stack, taken some time before the others.
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
    stacks: str = ""  # the newest dump, as text
    outside: OutsideStacks | None = None
    mention_s: float = 0.0  # log a phase that has lasted this long


class Watchdog:
    """The watchdog. It watches the ranks of one attempt at a time.

    Args:
        config: The settings for the time after which silence is a stall.
        probe: Access to the ranks.
        on_diagnosis: Called with a diagnosis, or None when a stall has ended, and with the duration of the silence.
        on_long_phase: Called with a long phase, its ranks and its duration. A phase is not a stall.
    """

    def __init__(
        self,
        config: FailureConfig,
        probe: RankProbe,
        on_diagnosis: Callable[[Diagnosis | None, float], None],
        on_long_phase: Callable[[str, list[int], float], None],
    ) -> None:
        waits = [s for s in (config.stall_warn_s, config.stall_timeout_s) if s is not None]
        self._config = config
        self._after_s = min(waits) if waits else None
        self._probe = probe
        self._on_diagnosis = on_diagnosis
        self._on_long_phase = on_long_phase
        self._ranks: list[_Watched] = []
        self._next: float | None = None  # the time of the next sample
        self._begun = False  # whether the earlier sample (``before``) was taken
        self._num_looks = 0  # samples taken during this silence
        self._index = 0
        self._longest_s = 0.0  # the longest silence that ended by itself
        self._concerned: frozenset[int] = frozenset()  # ranks of the current stall
        self.current: Diagnosis | None = None

    def begin(self, num_workers: int, now: float) -> None:
        """Start to watch, as all ranks have been sent Start."""
        self._ranks = [_Watched(now, now, mention_s=PHASE_S) for _ in range(num_workers)]
        self._concerned = frozenset()
        self._restart(now)

    def end(self) -> None:
        for watched in self._ranks:
            _drop_outside(watched)
        self._ranks = []
        self._next = None
        self.current = None

    # --- messages and exits ---

    def on_message(self, rank: int, message: ToController, now: float) -> None:
        if rank >= len(self._ranks):
            return
        watched = self._ranks[rank]
        match message:
            case StackDump(index=index):
                watched.stacks = message.text
                if index == self._index:
                    watched.answer = message
                if not _same(watched.heartbeat, message.heartbeat):
                    self._on_progress(rank, now)
                watched.heartbeat = message.heartbeat
            case Heartbeat():
                if not _same(watched.heartbeat, message):
                    self._on_progress(rank, now)
                watched.heartbeat = message
            case Report():
                watched.reports.append(now)
                watched.num_reports += 1
                self._on_progress(rank, now)
                watched.in_step = tuple([each.num_reports for each in self._ranks])
            case _:
                self._on_progress(rank, now)

    def on_end(self, rank: int, *, left: bool = False) -> None:
        """Record that the rank's function returned, or that its process exited (``left``)."""
        if rank < len(self._ranks):
            self._ranks[rank].over = True
            self._ranks[rank].left = left

    def stacks(self) -> dict[int, str]:
        """Return the newest stack dump of each rank, from the rank itself or from outside."""
        return {rank: watched.stacks for rank, watched in enumerate(self._ranks) if watched.stacks}

    def _on_progress(self, rank: int, now: float) -> None:
        watched = self._ranks[rank]
        silent_s = now - watched.since
        watched.since, watched.mention_s = now, PHASE_S
        if self.current is not None and rank in self._concerned:
            self._longest_s = max(self._longest_s, silent_s)
            self._on_diagnosis(None, silent_s)
            self.current = None
            self._restart(now)

    def _restart(self, now: float) -> None:
        self._num_looks = 0
        for watched in self._ranks:
            watched.samples.clear()
            watched.before = None
            _drop_outside(watched)
        self._begun = False
        self._next = now + self._threshold_s / 2 if self._after_s is not None else None

    # --- samples ---

    @property
    def _threshold_s(self) -> float:
        assert self._after_s is not None
        return max(self._after_s, PATIENCE * self._longest_s)

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until the next sample is due."""
        return None if self._next is None or not self._ranks else max(0.0, self._next - now)

    def look(self, now: float) -> None:
        """Do what is due. Call this when ``wait_s`` has passed; at other times it is cheap."""
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
                self._probe.ask(rank, self._index)
        self._next = now + BETWEEN_S

    def _forget(self, now: float) -> None:
        """Restart all clocks, because this process did not run for a while."""
        for watched in self._ranks:
            watched.since = watched.alive = now
        self._restart(now)

    def _is_time(self, now: float) -> bool:
        """Whether a rank has been silent for long enough; halfway, all ranks are sampled without stacks."""
        # Ranks in a phase count as silent, because they may be stopped.
        silent_since = min((watched.since for watched in self._ranks if not watched.over), default=None)
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
        vital = self._probe.vital(rank) or ProcessStats()
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
                watched.outside = self._probe.outside(rank)
            sample = self._sample(rank, now, main, answered=answer is not None)
            watched.samples.append(replace(sample, phase=answer.phase if answer is not None else ""))

    def _conclude(self, now: float) -> None:
        ranks = [self._seen(number, now) for number, each in enumerate(self._ranks) if not each.left]
        found = diagnose(ranks)
        if found is None and self.current is not None:
            self._on_diagnosis(None, self._silent_s(self.current.ranks, now))
        if found is not None:
            silent_s = self._silent_s(found.ranks, now)
            self._concerned = frozenset(found.ranks) | {each.rank for each in ranks if each.waits and each.silent}
            self._on_diagnosis(found, silent_s)
        elif self._config.stall_warn_s is not None:
            self._mention_long_phases([rank for rank in ranks if rank.samples and not rank.over], now)
        self.current = found
        for rank in ranks:
            if rank.samples and (rank.alive or rank.computes or rank.transfers):
                self._ranks[rank.rank].alive = now
        self._restart(now)
        again_s = self._config.stall_timeout_s
        if found is not None and again_s is not None:
            self._begun = True
            self._next = now + max(BETWEEN_S, min(self._threshold_s, again_s - silent_s))

    def _seen(self, number: int, now: float) -> Rank:
        """Return what is known about a rank, and whether it counts as silent."""
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
        """Whether a rank that was in step with this one at its last progress has reported several times since."""
        watched = self._ranks[number]
        return watched.num_reports > 0 and any(
            other.num_reports - watched.num_reports >= REPORTING
            and abs(before - watched.num_reports) <= 1
            and other.reports[0] > watched.since
            for other, before in zip(self._ranks, watched.in_step, strict=False)
        )

    def _silent_s(self, blamed: Sequence[int], now: float) -> float:
        """Return how long the blamed ranks, or if they have ended the ranks that wait for them, have been stalled."""
        there = [self._ranks[rank] for rank in blamed if not self._ranks[rank].over]
        silent = [max(each.since, each.alive) for each in there] or [
            each.since for each in self._ranks if not each.over and now - each.since >= self._threshold_s
        ]
        return now - min(silent, default=now)

    def _mention_long_phases(self, ranks: Sequence[Rank], now: float) -> None:
        """Report phases that have lasted long."""
        due: dict[str, list[int]] = {}
        for rank in ranks:
            watched = self._ranks[rank.rank]
            if rank.phase and now - watched.since >= watched.mention_s:
                due.setdefault(rank.phase, []).append(rank.rank)
                watched.mention_s = 2 * (now - watched.since)
        for phase, numbers in due.items():
            self._on_long_phase(phase, numbers, now - max(self._ranks[number].since for number in numbers))


def _drop_outside(watched: _Watched) -> None:
    if watched.outside is not None:
        watched.outside.close()
        watched.outside = None


def _same(a: Heartbeat, b: Heartbeat) -> bool:
    """Whether two heartbeats differ in nothing that shows progress."""
    return _progress(a) == _progress(b)


def _progress(heartbeat: Heartbeat) -> Heartbeat:
    return replace(heartbeat, rss_bytes=0, in_loader=False, wait=None)
