"""Gradient buckets of DistributedDataParallel, laid out before the first step and not changed later.

DDP lays out its buckets twice: in its constructor, and again after the first backward pass of the process, in the order
in which the gradients arrived. The position of a number in its bucket determines the order in which an all-reduce adds
the ranks' values. With three or more ranks, the first step after a restart would therefore add in a different order
than the same step of an uninterrupted run. This module makes the second layout immediately, from the last parameter to
the first. This is close to the order in which gradients arrive, and it is the same in every process.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

DDP = nn.parallel.DistributedDataParallel

_OF_MODEL = ("_build_params_for_reducer", "_build_debug_param_to_name_mapping", "_ddp_init_helper")
_OF_REDUCER = ("_push_all_rebuilt_params", "_rebuild_buckets")


def fix_buckets(model: nn.Module) -> str | None:
    """Fix the bucket layout of a DDP model. All ranks call it together, before their first step.

    Returns:
        None, or the reason why the buckets will change after the first step.
    """
    if not isinstance(model, DDP) or not _changes_layout(model):
        return None
    if reason := _obstacle(model):
        return reason
    _recreate_reducer(model)
    model.reducer._push_all_rebuilt_params()
    if not model.reducer._rebuild_buckets():
        return f"torch {torch.__version__} did not rebuild them"
    model._has_rebuilt_buckets = True
    return None


def _changes_layout(model: Any) -> bool:
    """Whether DDP will rebuild the buckets. It does not if it searches for unused parameters in each step."""
    rebuilt = getattr(model, "_has_rebuilt_buckets", False)
    return not rebuilt and (model.static_graph or not model.find_unused_parameters)


def _obstacle(model: Any) -> str | None:
    """Return why the reducer cannot be replaced. The result is the same on all ranks."""
    missing = [name for name in _OF_MODEL if not hasattr(model, name)]
    missing += [name for name in _OF_REDUCER if not hasattr(model.reducer, name)]
    if missing:
        return f"torch {torch.__version__} has no {', '.join(missing)}"
    if getattr(model, "mixed_precision", None) is not None:
        return "DistributedDataParallel(mixed_precision=...) is set"
    if getattr(model, "_comm_hooks", None):
        return "a communication hook was registered first"
    return None


def _recreate_reducer(model: Any) -> None:
    """Recreate the reducer as if a DDP model were unpickled, but with parameters and layout in reverse order."""
    del model.logger, model.reducer  # the buckets are as large as the model, so do not keep two sets
    parameters, sparse = (list(reversed(each)) for each in model._build_params_for_reducer())
    names = model._build_debug_param_to_name_mapping(parameters)
    model._ddp_init_helper(parameters, sparse, names, model.static_graph)
    if model.static_graph:
        model.reducer._set_static_graph()
        model.logger._set_static_graph()
