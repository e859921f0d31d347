"""How many batches of an epoch every rank has, where nobody can know that before they are made. Pure.

A rank makes a batch ahead and says so; it hands one to its loop only when all have said that they have it. So all loops
make as many steps, and none of them waits in a collective for a rank that has no more rows.
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
        """What all ranks may know now, if it is more than before."""
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
