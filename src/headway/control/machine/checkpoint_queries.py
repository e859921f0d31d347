"""Who wants to know which checkpoints there are, and since when they may be told. Pure.

A question waits for the checkpoint of the asker's own last report and, if it says so, for every validation. It is
settled by the rounds and by storage alone, so that a round that was dropped, or a late file, keeps nobody waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.messages import CheckpointQuery


@dataclass(frozen=True, slots=True)
class CheckpointQueries:
    """``open`` holds (rank, question); one rank may have several, from different threads."""

    open: tuple[tuple[int, CheckpointQuery], ...] = ()

    def ask(self, rank: int, question: CheckpointQuery) -> CheckpointQueries:
        """The same index again replaces what was asked before."""
        others = tuple(each for each in self.open if (each[0], each[1].index) != (rank, question.index))
        return CheckpointQueries((*others, (rank, question)))

    def settle(
        self, *, closed: int, answered: int, quiet: bool, validating: bool
    ) -> tuple[CheckpointQueries, CheckpointQueries]:
        """What stays open, and what can be answered now.

        ``closed``: every round before this one is over. ``answered``: the newest round that storage has answered;
        ``quiet``: it owes us nothing.
        """

        def ready(question: CheckpointQuery) -> bool:
            after = question.after
            there = after is None or (after < closed and (quiet or answered >= after))
            return there and not (question.validated and validating)

        now = tuple(each for each in self.open if ready(each[1]))
        return CheckpointQueries(tuple(each for each in self.open if each not in now)), CheckpointQueries(now)
