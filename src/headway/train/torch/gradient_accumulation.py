"""Accumulated gradients, which a save between two optimizer steps must contain in addition to the weights.

A gradient is pending from the time a backward pass adds to it until an optimizer steps with it. Most loops save when no
gradient is pending: they report after ``optimizer.step()``, and zero the gradients before or after that. A gradient is
therefore omitted from the checkpoint if it has not changed since the last step of its optimizer and if the optimizer
is known to get new gradient tensors for each step (``zero_grad()`` without ``set_to_none=False``). This is unknown
until the second step of a process, so gradients are saved until then. If gradients are carried over only in a later
step, they were missing from the saves before it; from then on, also after a restart, they are saved.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

_MARK = "_headway_stepped"  # attribute of a gradient tensor: its _Step

Saved = dict[str, torch.Tensor | None]  # by the parameter's name; None: zeros


@dataclass
class _Stepper:
    """The relevant facts about an optimizer."""

    num_steps: int = 0
    keeps_gradients: bool = False  # whether it has stepped twice with the same gradient tensor

    @property
    def replaces_gradients(self) -> bool:
        return self.num_steps > 1 and not self.keeps_gradients


@dataclass(frozen=True, slots=True)
class _Step:
    """The last step that used a gradient, and the version of the tensor at that step."""

    stepper: _Stepper
    version: int


class Steps:
    """An observer of all optimizers of the process, including wrapped and untracked ones."""

    def __init__(self) -> None:
        self._steppers: weakref.WeakKeyDictionary[Any, _Stepper] = weakref.WeakKeyDictionary()
        self._hook = register_optimizer_step_post_hook(self._after_step)
        self.total = 0  # steps of all optimizers
        self.kept_before_restart = False  # the value of ``keep_gradients`` in the process that saved the state
        self.kept_late = False  # whether an optimizer kept its gradients after it had replaced them in earlier steps

    def close(self) -> None:
        self._hook.remove()

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers that have taken a step."""
        return list(self._steppers)

    @property
    def keep_gradients(self) -> bool:
        """Whether any optimizer has stepped twice with the same gradient tensor."""
        return self.kept_before_restart or any(stepper.keeps_gradients for stepper in self._steppers.values())

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return  # a compiled step must not trace this; its gradients count as pending
        stepper = self._steppers.setdefault(optimizer, _Stepper(keeps_gradients=self.kept_before_restart))
        replaced = stepper.replaces_gradients
        stepper.num_steps += 1
        self.total += 1
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = _local(parameter.grad)
                    marks = gradient.__dict__
                    stepper.keeps_gradients |= _MARK in marks
                    marks[_MARK] = _Step(stepper, gradient._version)
        self.kept_late |= replaced and stepper.keeps_gradients


def pending(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a model whose gradients a later optimizer step may use."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not _is_done(_local(parameter.grad)):
            yield name, parameter


def _is_done(gradient: torch.Tensor) -> bool:
    step: _Step | None = gradient.__dict__.get(_MARK)
    return step is not None and step.version == gradient._version and step.stepper.replaces_gradients


def _local(gradient: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded gradient, to which FSDP adds in place."""
    local: torch.Tensor = getattr(gradient, "_local_tensor", gradient)
    return local


def saved(model: nn.Module) -> Saved:
    """Return this rank's pending gradients, which differ between ranks under ``no_sync()``."""
    return {name: _compact(parameter.grad) for name, parameter in pending(model)}


def _compact(gradient: torch.Tensor | None) -> torch.Tensor | None:
    assert gradient is not None
    gradient = gradient.detach()
    return gradient if gradient.layout is not torch.strided or gradient.any() else None


def load(model: nn.Module, gradients: Mapping[str, torch.Tensor | None]) -> None:
    for name, parameter in model.named_parameters():
        if name in gradients:
            parameter.grad = _restored(parameter, gradients[name])


def _restored(parameter: nn.Parameter, gradient: torch.Tensor | None) -> torch.Tensor:
    if gradient is None:
        return torch.zeros_like(parameter)
    if gradient.layout is not torch.strided:
        return gradient.to(parameter.device)
    return torch.empty_like(parameter, dtype=gradient.dtype, requires_grad=False).copy_(gradient)


def mean(of_ranks: Sequence[Saved]) -> Saved:
    """Return the average gradients, with which each rank resumes if the number of ranks has changed.

    An all-reduce divides the sum by the number of ranks, so equal gradients on each rank have the same effect, whether
    or not the gradients were already averaged over the ranks.
    """
    if len(of_ranks) == 1:
        return of_ranks[0]
    found: Saved = {}
    for name in {name for saved in of_ranks for name in saved}:
        values = [value for saved in of_ranks if (value := saved.get(name)) is not None]
        found[name] = torch.stack(values).sum(0).div(len(of_ranks)) if values else None
    return found


def held_unsharded(model: nn.Module) -> bool:
    """Whether FSDP holds gradients that it has not sharded yet, as it does without gradient synchronization."""
    for module in model.modules():
        get_state: Any = getattr(module, "_get_fsdp_state", None)
        group = getattr(get_state(), "_fsdp_param_group", None) if get_state is not None else None
        for parameter in getattr(group, "fsdp_params", ()):
            if getattr(parameter, "unsharded_accumulated_grad", None) is not None:
                return True
    return False
