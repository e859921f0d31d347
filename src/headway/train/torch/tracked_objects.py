"""Tracked models, optimizers and other stateful objects: which rank saves what, and how it is restored.

Models, optimizers and schedulers are the same on all ranks, and rank 0 saves them. Everything else, such as a meter or
a replay buffer, is separate on each rank. All ranks save a sharded model (FSDP), together with its optimizers.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from headway.core import phrases
from headway.core.errors import ConfigError, StorageError
from headway.train.torch import gradient_accumulation
from headway.train.torch.amp import Acceleration
from headway.train.torch.ddp_buckets import DDP, fix_buckets
from headway.train.torch.fsdp_state import ShardedReader, ShardedState, is_sharded
from headway.train.torch.optimizer_state import load_optimizer
from headway.train.torch.tracked_files import SavedState, StateWriter
from headway.worker.session import Session

_logger = logging.getLogger(__name__)

# These are the same on all ranks; other objects, such as meters and replay buffers, are separate on each rank.
COMMON = (nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)


class TrackedObjects:
    """Everything that is tracked, except data.

    Args:
        things: The tracked objects, by the names that the user chose.
        session: The worker's session.
    """

    def __init__(self, things: Mapping[str, Any], session: Session) -> None:
        self._session = session
        self._whole = {name: _checked(name, thing) for name, thing in things.items()}
        self._sharded = {name: ShardedState(t, self._whole) for name, t in self._whole.items() if is_sharded(t)}
        for name, state in self._sharded.items():
            for part in {name} | state.optimizers:
                del self._whole[part]

    def fix_buckets(self) -> None:
        """Fix DDP's buckets, so that the order of adding gradients does not depend on when the process started."""
        for name, module in self._ddp_modules.items():
            reason = fix_buckets(module)
            if reason and self._session.place.world_size > 2 and self._session.rank == 0:
                _logger.warning(
                    f"{name} might not resume bit for bit: its gradient buckets change after the first step of "
                    f"each attempt ({reason}); wrap it with prepare_model(), and register hooks after that"
                )

    # --- saving ---

    def save(self, writer: StateWriter) -> None:
        """Write what all ranks have in common, and this rank's part of sharded models."""
        if self._session.rank == 0:
            writer.write_shared({name: _state_of(thing) for name, thing in self._whole.items()})
        for name, sharded in self._sharded.items():
            sharded.save(writer.sharded(name))

    def of_rank(self) -> dict[str, Any]:
        """Return the per-rank part of objects that are otherwise the same on all ranks."""
        own = {name: _state_of(thing) for name, thing in self._whole.items() if not isinstance(thing, COMMON)}
        pending = {name: gradient_accumulation.saved(model) for name, model in self._models.items()}
        return {
            "gradients": {name: found for name, found in pending.items() if found},
            "buffers": {name: _buffers(model) for name, model in self._models_with_own_buffers.items()},
            "sends_buffers": {name: ddp.require_forward_param_sync for name, ddp in self._ddp_modules.items()},
            "things": own if self._session.rank else {},
            "scaler": self._scaler.state_dict() if self._scaler is not None else None,
        }

    def fingerprints(self) -> dict[str, str]:
        """Return, for each model, a digest of a few weights, which shows whether ranks trained different models."""
        return {name: _fingerprint(model) for name, model in self._models.items()}

    # --- loading ---

    def load(self, saved: SavedState) -> None:
        """Restore the saved state.

        Raises:
            StorageError: If the saved state does not match the tracked objects.
        """
        if saved.differing and self._session.rank == 0:
            _logger.warning(
                f"the ranks had different weights of {', '.join(saved.differing)} when {saved.path} was saved: all "
                "ranks now use those of rank 0; use prepare_model() to train one model"
            )
        for name, sharded in self._sharded.items():
            sharded.load(ShardedReader(saved.sharded(name), saved.proof))
        self._load_whole(saved.shared | (saved.own.get("things", {}) if saved.same_world else {}), saved.path)
        self._load_of_rank(saved.ranks)

    def _load_whole(self, states: dict[str, Any], path: str) -> None:
        if missing := self._whole.keys() - states.keys():
            raise StorageError(f"{path} does not contain {', '.join(sorted(missing))}; it contains {', '.join(states)}")
        for name, thing in self._whole.items():
            try:
                if isinstance(thing, torch.optim.Optimizer):
                    load_optimizer(thing, states[name])
                else:
                    _unwrapped(thing).load_state_dict(states[name])
            except Exception as error:  # raised by torch or by the user's class
                reason = phrases.shortened(" ".join(f"{type(error).__name__}: {error}".split()), 300)
                raise StorageError(
                    f"{name} cannot load its state from {path} ({reason}): create it as it was when the "
                    "checkpoint was saved, or give the run a new name"
                ) from error

    def _load_of_rank(self, ranks: list[dict[str, Any]]) -> None:
        """Load per-rank state. ``ranks``: this rank's, or every rank's if the number of ranks has changed."""
        for name, model in self._models.items():
            gradient_accumulation.load(
                model, gradient_accumulation.mean([own.get("gradients", {}).get(name, {}) for own in ranks])
            )
        for name, buffers in ranks[0].get("buffers", {}).items():
            if (found := self._sharded[name].model if name in self._sharded else self._models.get(name)) is not None:
                for part, value in buffers.items():
                    found.get_buffer(part).copy_(value)
        for name, sends in ranks[0].get("sends_buffers", {}).items():
            if (module := self._ddp_modules.get(name)) is not None:
                module.require_forward_param_sync = sends
        if self._scaler is not None and ranks[0].get("scaler"):
            self._scaler.load_state_dict(ranks[0]["scaler"])

    # --- the tracked objects ---

    @property
    def _scaler(self) -> Any:
        """The gradient scaler of ``accelerate()``, which is internal and therefore not tracked by name."""
        return getattr(self._session.helper(Acceleration).precision, "scaler", None)

    @property
    def _models(self) -> dict[str, nn.Module]:
        found = {name: _unwrapped(thing) for name, thing in self._whole.items()}
        return {name: thing for name, thing in found.items() if isinstance(thing, nn.Module)}

    @property
    def _ddp_modules(self) -> dict[str, DDP]:
        """DDP models and DDP parts of models. DDP decides in a forward pass whether the next one sends the buffers."""
        modules = {name: thing for name, thing in self._whole.items() if isinstance(thing, nn.Module)}
        parts = {f"{name}.{part}".rstrip("."): each for name, m in modules.items() for part, each in m.named_modules()}
        return {name: part for name, part in parts.items() if isinstance(part, DDP)}

    @property
    def _models_with_own_buffers(self) -> dict[str, nn.Module]:
        """Models whose buffers this rank saves separately. Rank 0's are in the shared state, unless sharded."""
        return {**(self._models if self._session.rank else {}), **{n: each.model for n, each in self._sharded.items()}}


def _checked(name: str, thing: Any) -> Any:
    if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
        raise ConfigError(f"train.track({name}=...) must have state_dict() and load_state_dict(), got {thing!r}")
    return thing


def _fingerprint(model: nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        if parameter.layout is torch.strided and not isinstance(parameter, UninitializedParameter):
            found.update(repr(parameter.detach().reshape(-1)[:4].tolist()).encode())
    return found.hexdigest()[:16]


def _unwrapped(thing: Any) -> Any:
    """Return the module inside DDP, so that parameter names do not depend on wrapping."""
    return thing.module if isinstance(thing, DDP) else thing


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers in the state dict. They may differ between ranks until DDP's next step, or permanently."""
    kept = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name in kept}


def _state_of(thing: Any) -> Any:
    return _unwrapped(thing).state_dict()
