"""What happens after a failure. Pure, and the only place that decides it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.core.messages import Exited, Failed

# raised: the function raised · died: the process ended · start: it never came up · storage: a commit failed
# program: the ranks contradict one another · misuse: the function called us wrongly; both would only be repeated
# lost: the run is in other hands
FailureKind = Literal["raised", "died", "start", "storage", "program", "misuse", "lost"]
FINAL: frozenset[FailureKind] = frozenset({"program", "misuse", "lost"})


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong in an attempt; ``rank`` is None where no single rank is to blame."""

    kind: FailureKind
    rank: int | None
    cause: Failed | Exited | str


@dataclass(frozen=True, slots=True)
class Retry:
    """Start another attempt."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the run as FAILED."""


def decide(failure: Failure, num_failures: int, max_failures: int) -> Retry | GiveUp:
    """``num_failures`` counts this one too; ``max_failures`` of -1 means without end."""
    if failure.kind in FINAL:
        return GiveUp()
    return Retry() if max_failures < 0 or num_failures <= max_failures else GiveUp()
