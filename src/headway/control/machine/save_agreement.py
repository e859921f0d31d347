"""The agreement on a report in which all ranks save, and perhaps leave. Pure.

Ranks run ahead of each other, and a flag would reach each of them in a different step. So there are two phases: every
rank is asked for its next report, and goes at most one report further until it hears back; then all are told a number
that no rank has passed.

    controller ── RequestNextReport ──▶ ranks
               ◀── NextReport(17), NextReport(19) ──
               ── SaveAtReport(20) ──▶
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class SaveAgreement:
    """``waiting``: ranks that have not answered. ``leave``: the report is to be their last."""

    index: int
    waiting: frozenset[int]
    leave: bool = False
    furthest: int = 0  # the largest number that a rank may be reporting already

    def answer(self, rank: int, index: int, seq: int) -> SaveAgreement:
        """This rank's next report is ``seq``."""
        if index != self.index or rank not in self.waiting:
            return self
        return replace(self, waiting=self.waiting - {rank}, furthest=max(self.furthest, seq))

    @property
    def seq(self) -> int | None:
        """The number, once it is known."""
        return None if self.waiting else self.furthest + 1
