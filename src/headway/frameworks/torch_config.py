"""PyTorch's backend configs and the registration of its adapter; does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from headway.core.config import refuse_unknown_keywords
from headway.core.errors import ConfigError
from headway.frameworks.base import BackendConfig
from headway.frameworks.registry import Framework, register

# Modules that the first DDP step would import lazily, which takes about 0.7 s in total. Small modules come first, so
# that a request for workers waits for at most one of them. The last three are for tracked state; importing them took
# half the time of every restart.
WARM = (
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
    """The config of the ``torch.distributed`` process group.

    Args:
        backend: The name of the backend; None means nccl if each worker has its own GPU, otherwise gloo.
        init_method: ``"env"`` or ``"tcp"``; accepted for compatibility but has no effect, because Headway passes the
            store in memory.
        timeout_s: The maximum time of a collective operation, in seconds.

    >>> TorchConfig(backend="gloo", timeout_s=60).timeout_s
    60
    """

    backend: str | None = None
    init_method: Literal["env", "tcp"] = "env"
    timeout_s: float = 1800

    entry: ClassVar[str | None] = "headway.frameworks.torch:joined"
    preload: ClassVar[tuple[str, ...]] = ("torch",)
    warm: ClassVar[tuple[str, ...]] = WARM

    def __post_init__(self) -> None:
        if self.init_method not in ("env", "tcp"):
            raise ConfigError(f"init_method must be 'env' or 'tcp', got {self.init_method!r}")
        if not isinstance(self.timeout_s, int | float) or not self.timeout_s > 0:
            raise ConfigError(f"timeout_s must be a positive number of seconds, got {self.timeout_s!r}")
        if self.backend is not None and (not isinstance(self.backend, str) or not self.backend):
            raise ConfigError(f"backend must be None or a name like 'gloo' or 'nccl', got {self.backend!r}")

    def for_single_process(self) -> BackendConfig:
        return SingleProcessConfig()


TorchConfig.__init__ = refuse_unknown_keywords(TorchConfig.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True)
class TorchScriptConfig(BackendConfig):
    """The config for torchrun scripts, which create their own process group; Headway lets it open no port."""

    entry: ClassVar[str | None] = "headway.frameworks.torch:prepared"
    preload: ClassVar[tuple[str, ...]] = ("torch",)
    warm: ClassVar[tuple[str, ...]] = WARM

    def for_single_process(self) -> BackendConfig:
        return SingleProcessConfig(by_script=True)


@dataclass(frozen=True)
class SingleProcessConfig(BackendConfig):
    """The config for running one of several ranks alone; ``by_script``: the script creates the group."""

    by_script: bool = False

    entry: ClassVar[str | None] = "headway.frameworks.torch_single_process:joined"


register(Framework(package="torch", adapter="headway.frameworks.torch", tracking="headway.train.torch.autosave"))
