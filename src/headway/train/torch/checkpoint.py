"""A checkpoint that contains a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from torch import nn

from headway.core.errors import ConfigError
from headway.storage.checkpoint.checkpoint import Checkpoint

STATE, MODEL = "state_dict", "model"


class TorchCheckpoint(Checkpoint):
    """A checkpoint made from a model's state, which is plain tensors, or from a complete model, which is pickled.

    >>> saved = TorchCheckpoint.from_state_dict(nn.Linear(2, 1).state_dict())
    >>> saved.get_model(nn.Linear(2, 1))
    Linear(in_features=2, out_features=1, bias=True)
    """

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Any]) -> Self:
        return cls.from_dict({STATE: state_dict})

    @classmethod
    def from_model(cls, model: nn.Module) -> Self:
        return cls.from_dict({MODEL: model})

    def get_model(self, model: nn.Module | None = None, *, trust: bool = False) -> nn.Module:
        """Return ``model`` with the saved state, or the model that was saved completely.

        The prefix ``module.`` that DDP adds to every name is removed if the names of ``model`` lack it.
        """
        content = self.to_dict(trust=trust)
        if MODEL in content:
            found: nn.Module = content[MODEL]
            return found
        if STATE not in content:
            raise ConfigError(f"{self!r} contains no model: create it with from_state_dict() or from_model()")
        if model is None:
            raise ConfigError("this checkpoint contains a state_dict: pass a model to get_model() to load it into")
        state = dict(content[STATE])
        if not any(name.startswith("module.") for name in model.state_dict()):
            state = {name.removeprefix("module."): value for name, value in state.items()}
        model.load_state_dict(state)
        return model
