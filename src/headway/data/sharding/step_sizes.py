"""Which rows each rank gets in each step: every row once per epoch, the same number of steps for all. Pure.

The global order is a function of (seed, epoch). Each step takes the next rows of it, ``global_batch`` of them, dealt
out one by one: what was consumed after any step is the beginning of the order, so any number of workers can go on
from there.

    order      0 1 2 3 4 5 6 7 8        global_batch 4, three ranks
    steps     |0 1 2|3 4 5|6 7 8|       4 + 4 + 1 would leave two ranks without a row in the last step

Where the last step would have fewer rows than there are ranks, those before it leave it some. Where batches of one row
have none to spare, the last step takes a few rows more than it was asked to. Only where there are fewer rows than ranks
is a row repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def num_steps(num_rows: int, global_batch: int, world_size: int, *, drop_last: bool) -> int:
    """How many steps there are if none leaves a rank without a row, and no row is repeated."""
    if drop_last:
        return num_rows // global_batch
    return min(-(-num_rows // global_batch), max(1, num_rows // world_size)) if num_rows else 0


def next_step(num_left: int, global_batch: int, world_size: int, *, drop_last: bool) -> int:
    """How many of the rows that are left the next step takes; 0 where there is none.

    It looks at what is left and not at what was before, so that going on is the same as not having stopped.
    """
    if num_left <= 0:
        return 0
    if drop_last:
        return global_batch if num_left >= global_batch else 0
    later = num_steps(num_left, global_batch, world_size, drop_last=False) - 1
    return num_left if later == 0 else max(world_size, min(global_batch, num_left - later * world_size))


def batches_of(
    order: Sequence[int], global_batch: int, world_size: int, rank: int, *, drop_last: bool, first: int = 0
) -> Iterator[list[int]]:
    """This rank's batches of what is left of an epoch from row ``first`` of its order on, none of them empty."""
    while first < len(order):
        size = next_step(len(order) - first, global_batch, world_size, drop_last=drop_last)
        if not size:
            return
        step = order[first : first + size]
        yield list(step[rank::world_size]) or [step[rank % size]]
        first += size
