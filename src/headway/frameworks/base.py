"""What every framework has in common: a config that travels, and the name of the code that acts on it."""

from __future__ import annotations

import contextlib
import importlib
import sys
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, cast

from headway.core.config import refuse_unknown_keywords
from headway.core.errors import ConfigError
from headway.core.messages import RankAssignment


class Join(Protocol):
    """Brings this process into its group for as long as the context is open."""

    def __call__(
        self, config: Any, place: RankAssignment, rendezvous: str | None, *, lasting: bool
    ) -> contextlib.AbstractContextManager[None]: ...


@dataclass(frozen=True)
class BackendConfig:
    """How the workers of a run find together; without one they are just processes."""

    entry: ClassVar[str | None] = None  # module:function, a Join
    preload: ClassVar[tuple[str, ...]] = ()  # modules that workers find imported already
    warm: ClassVar[tuple[str, ...]] = ()  # modules that are imported next, when there is time


# What the first DDP step would import lazily, about 0.7 s in all: small ones first, so that whoever asks for workers in
# the meantime waits for one of them at most. The last three are ours and what tracked state needs: without them every
# restart would import them anew, which was half of its time.
TORCH_WARM = (
    "mpmath",
    "sympy",
    "torch.optim",
    "torch.nn.parallel",
    "torch.distributed._functional_collectives",
    "torch.distributed.tensor",
    "torch.onnx",
    "torch._inductor.utils",
    "torch._functorch._aot_autograd.runtime_wrappers",
    "torch._dynamo",
    "safetensors.torch",
    "headway.train.torch",
    "headway.train.torch.autosave",
)


@dataclass(frozen=True)
class TorchConfig(BackendConfig):
    """How torch's process group is made: ``backend`` None is nccl where each worker has a card of its own, else gloo.

    >>> TorchConfig(backend="gloo", timeout_s=60).timeout_s
    60
    """

    backend: str | None = None
    init_method: Literal["env", "tcp"] = "env"
    timeout_s: float = 1800

    entry: ClassVar[str | None] = "headway.frameworks.torch:joined"
    preload: ClassVar[tuple[str, ...]] = ("torch",)
    warm: ClassVar[tuple[str, ...]] = TORCH_WARM

    def __post_init__(self) -> None:
        if self.init_method not in ("env", "tcp"):
            raise ConfigError(f"init_method must be 'env' or 'tcp', got {self.init_method!r}")
        if not isinstance(self.timeout_s, int | float) or not self.timeout_s > 0:
            raise ConfigError(f"timeout_s must be a positive number of seconds, got {self.timeout_s!r}")
        if self.backend is not None and (not isinstance(self.backend, str) or not self.backend):
            raise ConfigError(f"backend must be None or a name like 'gloo' or 'nccl', got {self.backend!r}")


TorchConfig.__init__ = refuse_unknown_keywords(TorchConfig.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True)
class TorchScriptConfig(BackendConfig):
    """For scripts written for torchrun: they make their own process group; we see to it that it opens no port."""

    entry: ClassVar[str | None] = "headway.frameworks.torch:prepared"
    preload: ClassVar[tuple[str, ...]] = ("torch",)
    warm: ClassVar[tuple[str, ...]] = TORCH_WARM


@dataclass(frozen=True)
class SingleProcessConfig(BackendConfig):
    """One rank in a world of many where the others are not; ``by_script``: its own code makes the group."""

    by_script: bool = False

    entry: ClassVar[str | None] = "headway.frameworks.torch_single_process:joined"


def alone(config: BackendConfig | None) -> BackendConfig | None:
    """The same for a rank that is run without the others."""
    match config:
        case TorchConfig():
            return SingleProcessConfig()
        case TorchScriptConfig():
            return SingleProcessConfig(by_script=True)
        case _:
            return config


def join(
    config: BackendConfig | None, place: RankAssignment, rendezvous: str | None, *, lasting: bool
) -> contextlib.AbstractContextManager[None]:
    """Act on a backend config, if there is one to act on."""
    if config is None or config.entry is None:
        return contextlib.nullcontext()
    module, _, name = config.entry.partition(":")
    entry = cast(Join, getattr(importlib.import_module(module), name))
    return entry(config, place, rendezvous, lasting=lasting)


def num_collectives() -> tuple[int, int]:
    """How many collective operations this process has begun: in all its groups, and in the one that all ranks share."""
    module = sys.modules.get("headway.frameworks.torch")
    count = getattr(module, "num_collectives", None)  # another thread may be importing it at this moment
    return count() if count is not None else (0, 0)
