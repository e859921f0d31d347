"""What happens after a failure. Pure, and the only place that decides it.

Three budgets that know nothing of each other: failures of workers, starts that came to nothing, preemptions. Whoever
fails again without having got further than before is given a pause that doubles, so that a run that cannot go on does
not spin; the first restart never waits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from headway.core.messages import FunctionFailed, WorkerExited

# raised: the function raised · died: the process ended · stalled: it stood still · storage: a commit failed
# start: it never came up · preempted: it was told to leave
# program: the ranks contradict one another · misuse: the function called us wrongly; both would only be repeated
# lost: the run is in other hands
FailureKind = Literal["raised", "died", "stalled", "start", "preempted", "storage", "program", "misuse", "lost"]
FINAL: frozenset[FailureKind] = frozenset({"program", "misuse", "lost"})

PAUSE_S = 1.0  # before the third start without progress; then it doubles
LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong in an attempt; ``rank`` is None where no single rank is to blame."""

    kind: FailureKind
    rank: int | None
    cause: FunctionFailed | WorkerExited | str


def was_taken(failure: Failure) -> bool:
    """Whether its process, or one that it has started, was ended: what happens when all are told to leave at once."""
    if failure.kind == "raised" and isinstance(failure.cause, FunctionFailed):
        return "killed by signal: Terminated" in failure.cause.message  # torch, of a loader process
    return failure.kind in ("died", "stalled")


@dataclass(frozen=True, slots=True)
class RetryBudgets:
    """How often each kind of trouble is survived; -1 means without end."""

    failures: int = 0
    starts: int = -1
    preemptions: int = -1
    exceptions: bool = True  # whether what the function raises is tried again at all


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """What has been charged so far, and how many attempts in a row have got nowhere."""

    failures: int = 0
    starts: int = 0
    preemptions: int = 0
    in_a_row: int = 0

    def charged(self, kind: FailureKind, *, progress: bool) -> FailureHistory:
        in_a_row = 1 if progress else self.in_a_row + 1
        match kind:
            case "start":
                return replace(self, starts=self.starts + 1, in_a_row=in_a_row)
            case "preempted":
                return replace(self, preemptions=self.preemptions + 1, in_a_row=in_a_row)
            case _:
                return replace(self, failures=self.failures + 1, in_a_row=in_a_row)


@dataclass(frozen=True, slots=True)
class Retry:
    """Start another attempt, after a pause."""

    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the run as FAILED."""


def decide(kind: FailureKind, history: FailureHistory, budgets: RetryBudgets) -> Retry | GiveUp:
    """``history`` counts this failure too."""
    if kind in FINAL or (kind == "raised" and not budgets.exceptions):
        return GiveUp()
    match kind:
        case "start":
            spent, budget = history.starts, budgets.starts
        case "preempted":
            spent, budget = history.preemptions, budgets.preemptions
        case _:
            spent, budget = history.failures, budgets.failures
    if 0 <= budget < spent:
        return GiveUp()
    free = 0 if kind == "start" else 1  # who did not even come up will not do so in the next millisecond
    doublings = history.in_a_row - 1 - free
    return Retry(min(LONGEST_PAUSE_S, PAUSE_S * 2.0 ** min(doublings, 30)) if doublings >= 0 else 0.0)
