"""Strict loading of optimizer state: an optimizer gets exactly the saved state, or loading raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load the ``state_dict()`` of an optimizer.

    torch silently loads the state of a different class of optimizer, and then the first step fails because of missing
    entries.
    """
    options = set(optimizer.defaults)  # read before loading, which adds "differentiable" to the options of any class
    optimizer.load_state_dict(saved)
    for group in optimizer.param_groups:
        if missing := sorted(options - group.keys()):
            raise ValueError(f"it was saved without {', '.join(missing)}, by a different optimizer class")
    parameters = {
        number: parameter
        for group, saved_group in zip(optimizer.param_groups, saved["param_groups"], strict=True)
        for parameter, number in zip(group["params"], saved_group["params"], strict=True)
    }
    restore_dtypes(optimizer, parameters, saved["state"])


def restore_dtypes(optimizer: torch.optim.Optimizer, parameters: Mapping[Any, Any], saved: Mapping[Any, Any]) -> None:
    """Restore the dtypes of the saved state. torch loads it in the parameter's dtype, which rounds float32 weights.

    Args:
        optimizer: The optimizer, whose state has been loaded.
        parameters: The parameters, by the keys of ``saved``.
        saved: The saved state of each parameter.
    """
    for key, parameter in parameters.items():
        if key in saved and parameter in optimizer.state:
            optimizer.state[parameter] = _in_dtypes_of(saved[key], optimizer.state[parameter])


def _in_dtypes_of(saved: Any, loaded: Any) -> Any:
    """Return ``loaded``, but with the tensors of ``saved`` if their dtype was changed."""
    match saved, loaded:
        case torch.Tensor(), torch.Tensor():
            return loaded if loaded.dtype == saved.dtype else saved.to(device=loaded.device, copy=True)
        case dict(), dict() if saved.keys() == loaded.keys():
            loaded.update({key: _in_dtypes_of(saved[key], value) for key, value in loaded.items()})
        case list(), list() if len(saved) == len(loaded):
            loaded[:] = [_in_dtypes_of(*pair) for pair in zip(saved, loaded, strict=True)]
    return loaded
