"""State that a save of ``train.track()`` omits although training depends on it. Each kind is reported once:

an untracked optimizer with state that updates a tracked model
an untracked prepared loader in the middle of a pass
work before an epoch's first loop over tracked data, which a resumed epoch repeats
gradients that a step used, and that a later step used again although the loop usually clears them
a loader that two loops iterate at the same time, of which only one position is saved
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from headway.train.early_stopping import EarlyStopping
from headway.train.torch import gradient_accumulation
from headway.train.torch.loader import Use

_logger = logging.getLogger(__name__)

# Objects of other classes may hold an optimizer and save it.
_HOLD_NO_OPTIMIZER = (nn.Module, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler, EarlyStopping)


class Omissions:
    """A check of every save for omitted state.

    Args:
        things: Everything that is tracked except loaders, by name.
        steps: An observer of the optimizers of the process.
        audible: Whether this rank prints.
    """

    def __init__(self, things: Mapping[str, Any], steps: gradient_accumulation.Steps, *, audible: bool) -> None:
        self._things = dict(things)
        self._steps = steps
        self._audible = audible
        self._printed: set[str] = set()
        self._before: dict[str, int] = {}  # work done when the epoch began
        self._early: list[str] = []  # what did work before the epoch's first loop
        self._guarded = False

    def begin_epoch(self) -> None:
        self._before, self._early, self._guarded = self._work(), [], False

    def guard(self) -> None:
        """Record that code before the first loop checks the epoch's progress, so it may do its work only once."""
        self._guarded = True

    def begin_first_loop(self) -> None:
        work = self._work()
        self._early = [] if self._guarded else [name for name, done in work.items() if done != self._before.get(name)]

    def check(self, uses: Iterable[Use], overlapping: Iterable[str], *, epoch: int | None) -> None:
        """Report what a save omits; ``epoch``: the current epoch if the save is in the middle of one."""
        if self._untracked_optimizer():
            self._print(
                "optimizer",
                "an optimizer with state takes steps, but is not passed to train.track(...): after a restart "
                "its state is lost; pass it",
            )
        if self._steps.kept_late:
            self._print(
                "gradients",
                "an optimizer has used gradients again that earlier steps had cleared: checkpoints before this step do "
                "not contain them, so a resume from one of those is not exact; later ones contain them",
            )
        for use in uses:
            if use.is_amid:
                self._print(
                    "loader",
                    f"a loader of a {use.dataset} is not passed to train.track(...), and is in the middle of a pass "
                    "when state is saved: after a restart it starts again from its first batch"
                    + ("; pass it" if use.can_be_tracked else ", because it cannot be resumed"),
                )
        for name in overlapping:
            self._print(
                "overlap",
                f"{name} is iterated by two loops at once, but only one position in it is saved: a resumed run will "
                "not have the same batches; use a separate loader for each loop",
            )
        if epoch is not None and self._early:
            self._print(
                "steps",
                f"epoch {epoch} took steps ({', '.join(self._early)}) before its first loop over tracked data: "
                "a restart in the middle of the epoch repeats them; pass the loader of those steps to "
                "train.track(...), or take them only if state.num_batches == 0, or after the loop",
            )

    def _work(self) -> dict[str, int]:
        schedulers = {
            name: _num_steps(thing)
            for name, thing in self._things.items()
            if isinstance(thing, torch.optim.lr_scheduler.LRScheduler)
        }
        return {"optimizer steps": self._steps.total, **schedulers}

    def _untracked_optimizer(self) -> bool:
        optimizers = [thing for thing in self._things.values() if isinstance(thing, torch.optim.Optimizer)]
        rest = [thing for thing in self._things.values() if not isinstance(thing, torch.optim.Optimizer)]
        if not all(isinstance(thing, _HOLD_NO_OPTIMIZER) for thing in rest):
            return False
        models = [thing for thing in rest if isinstance(thing, nn.Module)]
        moved = {parameter for model in models for parameter in model.parameters()}
        held = [*optimizers, *(part for each in optimizers for part in vars(each).values())]
        return any(
            optimizer.state
            and not any(optimizer is each for each in held)
            and any(parameter in moved for group in optimizer.param_groups for parameter in group["params"])
            for optimizer in self._steps.optimizers
        )

    def _print(self, kind: str, what: str) -> None:
        if self._audible and kind not in self._printed:
            _logger.warning(what)
        self._printed.add(kind)


def _num_steps(scheduler: Any) -> int:
    """Return the steps that a scheduler has taken. A ``ChainedScheduler`` does not count its own."""
    count = getattr(scheduler, "last_epoch", None)
    return sum(map(_num_steps, getattr(scheduler, "_schedulers", ()))) if count is None else int(count)
