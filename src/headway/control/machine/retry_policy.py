"""The retry policy decides what follows a failure. Pure, and the only place that decides it.

There are three independent budgets: failures of workers, failed starts, preemptions. A run that fails again without
progress pauses, twice as long each time, so that it does not restart in a tight loop; the first restart never waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headway.core.messages import FunctionFailed, WorkerExited

# raised: the function raised · died: the process exited · stalled: no progress · storage: a commit failed
# start: workers did not start · preempted: workers were preempted
# program: the ranks contradict each other · misuse: the function called Headway wrongly; a retry would repeat both
# lost: another program has taken over the run
FailureKind = Literal["raised", "died", "stalled", "start", "preempted", "storage", "program", "misuse", "lost"]
FINAL: frozenset[FailureKind] = frozenset({"program", "misuse", "lost"})

PAUSE_S = 1.0  # before the third start without progress; then it doubles
LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong in an attempt; ``rank`` is None if no single rank is to blame."""

    kind: FailureKind
    rank: int | None
    cause: FunctionFailed | WorkerExited | str


def was_terminated(failure: Failure) -> bool:
    """Whether its process or a child process was terminated, as happens if all processes get SIGTERM at once."""
    if failure.kind == "raised" and isinstance(failure.cause, FunctionFailed):
        return "killed by signal: Terminated" in failure.cause.message  # torch's message about a loader process
    return failure.kind in ("died", "stalled")


@dataclass(frozen=True, slots=True)
class RetryBudgets:
    """The number of failures of each kind that the run survives; -1: unlimited."""

    failures: int = 0
    starts: int = -1
    preemptions: int = -1
    exceptions: bool = True  # whether the run is retried when the function raises


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """Failures so far by kind, and attempts in a row without progress."""

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


def decisive_kind(failures: Sequence[Failure], budgets: RetryBudgets) -> FailureKind:
    """Return the kind of failure that decides what follows.

    A failure that another attempt would only repeat takes precedence. If exceptions are not
    retried, the death of a process comes next, because it makes functions on other ranks raise. Otherwise the first
    failure decides.
    """
    kinds = [failure.kind for failure in failures]
    if final := [kind for kind in kinds if kind in FINAL]:
        return final[0]
    return "died" if "died" in kinds and not budgets.exceptions else kinds[0]


def decide(kind: FailureKind, history: FailureHistory, budgets: RetryBudgets) -> Retry | GiveUp:
    """Decide whether there is another attempt; ``history`` already includes this failure."""
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
    free = 0 if kind == "start" else 1  # a worker that did not start will not start in the next millisecond
    doublings = history.in_a_row - 1 - free
    return Retry(min(LONGEST_PAUSE_S, PAUSE_S * 2.0 ** min(doublings, 30)) if doublings >= 0 else 0.0)
