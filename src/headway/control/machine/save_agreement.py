"""The agreement on a report in which all ranks save, and optionally leave. Pure.

Ranks run ahead of each other, so a flag would reach each of them in a different step. The agreement therefore has two
phases: every rank is asked for its next report, and sends at most one more report until it gets an answer; then all
ranks are sent a number that no rank has passed.

    controller ── RequestNextReport ──▶ ranks
               ◀── NextReport(17), NextReport(19) ──
               ── SaveAtReport(20) ──▶
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class SaveAgreement:
    """``waiting``: ranks that have not answered. ``leave``: whether the ranks leave after this report."""

    index: int
    waiting: frozenset[int]
    leave: bool = False
    furthest: int = 0  # the largest report number that any rank may have reached

    def answer(self, rank: int, index: int, seq: int) -> SaveAgreement:
        """Record that this rank's next report is ``seq``."""
        if index != self.index or rank not in self.waiting:
            return self
        return replace(self, waiting=self.waiting - {rank}, furthest=max(self.furthest, seq))

    @property
    def seq(self) -> int | None:
        """The agreed report number; None until all ranks have answered."""
        return None if self.waiting else self.furthest + 1
