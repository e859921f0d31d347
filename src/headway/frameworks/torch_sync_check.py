"""The check that ranks synchronize their models, which warns if this rank trains its model independently.

A forgotten ``prepare_model()`` is easy to miss: every rank trains on its part of the data, the loss falls, and the
checkpoint contains the model of one rank. DDP, FSDP and code that averages gradients by hand use a collective between
any two optimizer steps. If many steps pass without one, a warning is logged once. Collectives before the first step
prove nothing, because they may belong to a metric.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from headway.core.messages import RankAssignment

_logger = logging.getLogger(__name__)

ENOUGH = 100  # optimizer steps without a collective between them
ENOUGH_IN_LIGHTNING = 10  # Lightning has no strategy that averages models only occasionally


@contextlib.contextmanager
def notice_separate_models(place: RankAssignment, num_collectives: Callable[[], int]) -> Iterator[None]:
    """Warn on rank 0 if its optimizers step while the process group is not used.

    The hook does nothing once the answer is known, usually after the second step. It stays until the function returns,
    because an optimizer iterates over its hooks while it calls them.
    """
    if place.world_size == 1 or place.rank != 0:
        yield
        return
    steps = _Steps(place, num_collectives)
    try:
        yield
        steps.on_return()
    finally:
        steps.hook.remove()


class _Steps:
    """The counter of optimizer steps, active until it is known whether the ranks synchronize."""

    def __init__(self, place: RankAssignment, num_collectives: Callable[[], int]) -> None:
        self._place = place
        self._num_collectives = num_collectives
        self._count = 0
        self._at_first = 0  # the number of collectives at the first step
        self._answered = False
        self.hook = register_optimizer_step_post_hook(self._on_step)

    def _on_step(self, *_: object) -> None:
        if torch.compiler.is_compiling() or self._answered:  # a compiled step must not trace this hook
            return
        self._count += 1
        if self._count == 1:
            self._at_first = self._num_collectives()
        elif self._num_collectives() != self._at_first:
            self._answer(separate=False)
        elif self._count >= (ENOUGH_IN_LIGHTNING if _has_lightning() else ENOUGH):
            self._answer(separate=True)

    def on_return(self) -> None:
        """Draw the conclusion at the end of the function, since no collective will follow."""
        if not self._answered and self._count:
            now = self._num_collectives()
            self._answer(separate=now == self._at_first if self._count > 1 else now == 0)

    def _answer(self, *, separate: bool) -> None:
        self._answered = True
        if separate:
            _logger.warning(_sentence(self._place, self._count))


def _has_lightning() -> bool:
    return "lightning" in sys.modules or "pytorch_lightning" in sys.modules


def _sentence(place: RankAssignment, num_steps: int) -> str:
    remedy = "wrap it with headway.train.torch.prepare_model(model)"
    if _has_lightning():
        nodes = f", num_nodes={place.num_nodes}" if place.num_nodes > 1 else ""
        remedy = f"use Trainer(devices={place.local_world_size}{nodes}, strategy='ddp'), or omit these arguments"
    steps = "1 optimizer step" if num_steps == 1 else f"{num_steps} optimizer steps"
    return (
        f"there are {place.world_size} workers, but rank 0 took {steps} without a collective operation: "
        f"each rank trains its own model. To train one model together, {remedy}"
    )
