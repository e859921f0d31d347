"""The check that saves of different ranks belong together: their n-th saves have the same report number. Pure.

    rank 0   0   1   2C  3   4   5C        logs twice before it saves: its first save is report 2
    rank 1   0C  1C                        saves in every report: its first save is report 0

Merged by report number, these saves would make checkpoints from files of different steps. The later of the two saves is
therefore reported as a *crossing*, and the run fails with a message that names both.
"""

from __future__ import annotations

from dataclasses import dataclass

MEMORY = 256  # saves whose report numbers are remembered


@dataclass(frozen=True, slots=True)
class CrossedSaves:
    """The ``nth`` save of rank ``a`` is its report ``seq_a``; the ``nth`` save of rank ``b`` is its report ``seq_b``.

    ``suspects`` are later rounds in which other ranks saved and which are therefore incomplete: all rounds that ``a``
    has not reached yet, and the rounds that it passed without saving, if these are so few that it must have meant the
    same save.
    """

    a: int
    seq_a: int
    b: int
    seq_b: int
    nth: int
    suspects: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SaveNumbers:
    """``counts[rank]``: its saves so far; ``first``, ``recent``: report numbers of the first and latest saves."""

    counts: tuple[int, ...]
    first: int | None = None
    recent: tuple[int, ...] = ()

    def made(self, rank: int, seq: int, window: int) -> tuple[SaveNumbers, CrossedSaves | None]:
        """Record a save of this rank in report ``seq``; at most ``window`` rounds that it has passed are suspects."""
        n, most = self.counts[rank], max(self.counts)
        counts = (*self.counts[:rank], n + 1, *self.counts[rank + 1 :])
        if n == most:
            first = seq if self.first is None else self.first
            return SaveNumbers(counts, first, (*self.recent, seq)[-MEMORY:]), None
        saves = SaveNumbers(counts, self.first, self.recent)
        expected = self._number(n)
        if expected in (seq, None):
            return saves, None
        other = next(b for b, count in enumerate(self.counts) if count > n and b != rank)
        since = self.recent[max(0, len(self.recent) - (most - n)) :]
        passed = tuple(number for number in since if number < seq)
        suspects = (*(passed if len(passed) <= window else ()), *(number for number in since if number >= seq))
        return saves, CrossedSaves(rank, seq, other, expected or 0, n, suspects)

    def _number(self, n: int) -> int | None:
        """Return the report number of the n-th save; None if the save is too long ago."""
        index = n - (max(self.counts) - len(self.recent))
        return self.first if n == 0 else self.recent[index] if index >= 0 else None


NO_SAVES = SaveNumbers(())
