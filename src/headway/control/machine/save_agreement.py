"""In which report all ranks shall save, and perhaps leave: agreed by number, never by a flag or a clock. Pure.

Ranks run ahead of each other, and a flag reaches each of them in another step. So it takes two phases: every rank is
asked where it stands, and goes at most one report further until it hears back; then all are told one number that nobody
has passed.

    controller ── Approach ──▶ ranks ── At(17), At(19) ──▶ controller ── SaveAt(20) ──▶ ranks
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class SaveAgreement:
    """``waiting``: ranks that have not said where they stand. ``leave``: the report is to be their last."""

    index: int
    waiting: frozenset[int]
    leave: bool = False
    furthest: int = 0  # the largest number that somebody may report already

    def answer(self, rank: int, index: int, seq: int) -> SaveAgreement:
        """This rank's next report is ``seq``."""
        if index != self.index or rank not in self.waiting:
            return self
        return replace(self, waiting=self.waiting - {rank}, furthest=max(self.furthest, seq))

    @property
    def seq(self) -> int | None:
        """The number, once it is known."""
        return None if self.waiting else self.furthest + 1
