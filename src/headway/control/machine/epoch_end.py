"""The end of an epoch of unknown length: the number of batches that every rank has. Pure.

A rank prepares one batch ahead and reports its count; its loop receives a batch only after every rank has reported at
least that count. Therefore all loops run the same number of steps, and no rank waits in a collective for a rank that
has no more rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.core.messages import BatchCount, CommonBatchCount


@dataclass(frozen=True)
class EpochEnds:
    num_workers: int
    known: Mapping[tuple[str, int], Mapping[int, BatchCount]] = field(
        default_factory=dict
    )  # (dataset, epoch) -> rank -> …

    def heard(self, rank: int, steps: BatchCount) -> tuple[EpochEnds, CommonBatchCount | None]:
        """Record a rank's count, and return the count that all ranks have reached if it has changed."""
        key = (steps.dataset, steps.epoch)
        before = self.known.get(key, {})
        now = {**before, rank: steps}
        later = {each: ranks for each, ranks in self.known.items() if each[0] != key[0] or each[1] >= key[1] - 1}
        horizon = self._of(now)
        changed = horizon is not None and horizon != self._of(before)
        return EpochEnds(self.num_workers, {**later, key: now}), horizon if changed else None

    def _of(self, ranks: Mapping[int, BatchCount]) -> CommonBatchCount | None:
        if len(ranks) < self.num_workers:
            return None
        count = min(each.count for each in ranks.values())
        last = any(each.ended and each.count == count for each in ranks.values())
        some = next(iter(ranks.values()))
        return CommonBatchCount(dataset=some.dataset, epoch=some.epoch, count=count, last=last)
