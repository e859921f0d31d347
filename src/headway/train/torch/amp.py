"""Mixed precision in three calls: ``accelerate(amp=True)`` first, then ``prepare_optimizer`` and ``backward``.

On CUDA, it uses bfloat16 if the GPU supports it, otherwise float16 with a gradient scaler. On CPU, it uses bfloat16.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headway.core.errors import SessionError
from headway.frameworks.torch import device_of
from headway.worker.session import current


class Precision:
    """The precision of one session: the dtype to compute in, and a scaler if that dtype needs one."""

    def __init__(self, device: torch.device) -> None:
        half = device.type == "cuda" and not torch.cuda.is_bf16_supported()
        self.dtype = torch.float16 if half else torch.bfloat16
        self.scaler = torch.amp.GradScaler(device.type) if half else None


@dataclass
class Acceleration:
    """The precision that ``accelerate()`` sets for a session."""

    was_called: bool = False
    has_models: bool = False  # whether models have already been prepared
    precision: Precision | None = None


def accelerate(amp: bool = False) -> None:
    """Turn on mixed precision for models that are prepared later. Call it once, at the top of the function."""
    session = current("headway.train.torch.accelerate")
    acceleration = session.helper(Acceleration)
    if acceleration.was_called:
        raise SessionError("accelerate() was called twice: call it once, at the top of your training function")
    if acceleration.has_models:
        raise SessionError("accelerate() was called after prepare_model(): call it first")
    acceleration.was_called = True
    if amp:
        acceleration.precision = Precision(device_of(session.place))


def prepare_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Make ``optimizer.step()`` use the gradient scaler, if there is one."""
    precision = current("headway.train.torch.prepare_optimizer").helper(Acceleration).precision
    if precision is None or precision.scaler is None:
        return optimizer
    return _Scaled(optimizer, precision.scaler)


def backward(loss: torch.Tensor) -> None:
    """Call ``loss.backward()``, scaled if the precision requires it."""
    precision = current("headway.train.torch.backward").helper(Acceleration).precision
    scaled = loss if precision is None or precision.scaler is None else precision.scaler.scale(loss)
    scaled.backward()


def autocast_forward(model: nn.Module, device: torch.device) -> None:
    """Run this model's forward in the session's precision. The model stays picklable, as only a method changes."""
    session = current("headway.train.torch.prepare_model")
    acceleration = session.helper(Acceleration)
    acceleration.has_models = True
    precision = acceleration.precision
    if precision is not None:
        forward = vars(model).get("forward") or functools.partial(type(model).forward, model)
        vars(model)["forward"] = functools.partial(_forward, forward, device.type, precision.dtype)


def _forward(forward: Any, device: str, dtype: torch.dtype, /, *args: Any, **kwargs: Any) -> Any:
    with torch.autocast(device, dtype=dtype):
        return forward(*args, **kwargs)


class _Scaled(torch.optim.Optimizer):
    """An optimizer whose steps use a gradient scaler; everything else is delegated to the inner optimizer.

    It is a subclass so that schedulers accept it, but it has no state. Schedulers patch only this object's ``step``.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
        self.__dict__.update(_inner=optimizer, _scaler=scaler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def step(self, closure: Any = None) -> Any:
        result = self._scaler.step(self._inner, *([closure] if closure else []))
        self._scaler.update()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._inner.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._inner.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._inner.load_state_dict(state_dict)
