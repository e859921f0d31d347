"""Ranks' queries for the list of checkpoints, and the conditions for answering them. Pure.

A query waits for the checkpoint of the rank's own last report and, on request, for every validation. Only the rounds
and storage decide whether it is ready, so a dropped round or a late file never blocks it.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.messages import CheckpointQuery


@dataclass(frozen=True, slots=True)
class CheckpointQueries:
    """``open`` holds (rank, query); a rank may have several, from different threads."""

    open: tuple[tuple[int, CheckpointQuery], ...] = ()

    def ask(self, rank: int, query: CheckpointQuery) -> CheckpointQueries:
        """Add a query; it replaces an earlier one with the same index."""
        others = tuple(each for each in self.open if (each[0], each[1].index) != (rank, query.index))
        return CheckpointQueries((*others, (rank, query)))

    def settle(
        self, *, closed: int, answered: int, quiet: bool, validating: bool
    ) -> tuple[CheckpointQueries, CheckpointQueries]:
        """Return the queries that stay open and those that can be answered now.

        Args:
            closed: Number of the oldest open round; all earlier rounds are closed.
            answered: Number of the newest round that storage has answered.
            quiet: Whether storage has answered everything.
            validating: Whether a validation is running or pending.
        """

        def ready(query: CheckpointQuery) -> bool:
            after = query.after
            there = after is None or (after < closed and (quiet or answered >= after))
            return there and not (query.validated and validating)

        now = tuple(each for each in self.open if ready(each[1]))
        return CheckpointQueries(tuple(each for each in self.open if each not in now)), CheckpointQueries(now)
