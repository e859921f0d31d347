"""Modes of tracked models, which their state dicts do not contain: frozen parameters, and modules that do not train.

Only modes that changed after the first epoch began are saved and restored; the others are those that the code sets.
They are restored twice, like random states: when the resumed epoch begins, and before its first loop gets its first
batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from headway.train.torch.ddp_buckets import DDP

KINDS = ("trainable", "training")

Modes = dict[str, dict[str, bool]]  # by kind and model, and then by the name of the parameter or module


class ModelModes:
    """The modes of models, and the saved modes that must still be restored.

    Args:
        models: The tracked models, by name.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self._models = dict(models)
        self._initial: Modes | None = None  # when the first epoch of this process began
        self._at_epoch: Modes | None = None
        self._at_first_batch: Modes | None = None
        self._epoch_began_with: Modes = {}

    def begin_epoch(self) -> None:
        """Begin an epoch, or the code after the last epoch."""
        modes, self._at_epoch = self._at_epoch, None
        self._set(modes)
        self._epoch_began_with = self._changed()

    def begin_first_batch(self) -> None:
        """Restore saved modes before a loop gets its first batch."""
        modes, self._at_first_batch = self._at_first_batch, None
        self._set(modes)

    def saved(self, *, in_loop: bool, in_epoch: bool) -> dict[str, Any]:
        """Return the changed modes, and those with which the code that will run again began; see ``RandomStates``."""
        now = self._changed()
        began_with = self._epoch_began_with if in_epoch else now
        return {"modes": {"now": now, "began_with": began_with, "in_loop": in_loop}} if now or began_with else {}

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Restore saved modes at the right times. Older saves do not contain them."""
        if "modes" in saved:
            modes = saved["modes"]
            self._at_epoch = modes["began_with"]
            self._at_first_batch = modes["now"] if modes["in_loop"] else None

    def _captured(self) -> Modes:
        modes: Modes = {}
        for name, model in self._models.items():
            inner = _inner(model)
            modes[f"trainable {name}"] = {part: each.requires_grad for part, each in inner.named_parameters()}
            modes[f"training {name}"] = {part: each.training for part, each in inner.named_modules()}
        return modes

    def _changed(self) -> Modes:
        """Return the modes that are not the initial ones."""
        now = self._captured()
        initial = self._initial = self._initial or now
        found = {
            key: {part: mode for part, mode in parts.items() if initial[key].get(part, mode) != mode}
            for key, parts in now.items()
        }
        return {key: parts for key, parts in found.items() if parts}

    def _set(self, changed: Modes | None) -> None:
        initial = self._initial = self._initial or self._captured()
        if changed is None:
            return
        for name, model in self._models.items():
            trainable, training = ({**initial[f"{kind} {name}"], **changed.get(f"{kind} {name}", {})} for kind in KINDS)
            inner = _inner(model)
            for part, parameter in inner.named_parameters():
                if parameter.requires_grad != trainable.get(part, parameter.requires_grad):
                    parameter.requires_grad_(trainable[part])
            for part, module in inner.named_modules():
                module.training = training.get(part, module.training)
            model.training = inner.training


def _inner(model: nn.Module) -> nn.Module:
    """Return the module inside DDP, so that names do not depend on wrapping."""
    inner: nn.Module = model.module if isinstance(model, DDP) else model
    return inner
