"""Which rows each rank gets in each step: every row once per epoch, the same number of steps for all. Pure.

The global order is a function of (seed, epoch). Step ``s`` takes the next ``batch_size × world_size`` rows of it, dealt
out one by one; the last step deals what is left, so that batches of one step differ by at most one row. Where that
would leave a rank without a row, it keeps one back from its step before. Only where it cannot (fewer rows than workers,
batches of one) is a row repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def num_steps(num_rows: int, batch_size: int, world_size: int, *, drop_last: bool) -> int:
    whole, left = divmod(num_rows, batch_size * world_size)
    return whole if drop_last else whole + (left > 0)


def rows_of(order: Sequence[int], batch_size: int, world_size: int, rank: int, *, drop_last: bool) -> list[int]:
    """This rank's rows, in the order in which it sees them: at least one for every step."""
    steps = num_steps(len(order), batch_size, world_size, drop_last=drop_last)
    mine = list(order[: steps * batch_size * world_size][rank::world_size])
    return mine if len(mine) >= steps else [*mine, order[rank % len(order)]]


def batches_of(mine: Sequence[int], batch_size: int, steps: int) -> Iterator[list[int]]:
    """Cut a rank's rows into exactly ``steps`` batches, none of them empty."""
    start = 0
    for step in range(steps):
        size = min(batch_size, len(mine) - start - (steps - step - 1))
        yield list(mine[start : start + size])
        start += size
