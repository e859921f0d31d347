"""Tests of every framework against the contract of frameworks; broken frameworks must fail it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from headway import train
from headway.core.messages import RankAssignment
from headway.frameworks.base import BackendConfig
from headway.frameworks.torch_config import TorchConfig, TorchScriptConfig
from headway.testing.contracts.framework import AfterStep, FrameworkContract, Total, TrackedTraining
from headway.train.torch import prepare_data_loader, prepare_model


@pytest.fixture(autouse=True)
def no_group_is_left() -> Iterator[None]:
    """A script that runs in this process makes a group and does not destroy it."""
    init = dist.init_process_group
    yield
    dist.init_process_group = init
    if dist.is_initialized():
        dist.destroy_process_group()


def total_of_torch(value: float) -> float:
    if not dist.is_initialized():  # a script makes its own group
        dist.init_process_group("gloo")
    found = torch.tensor(value)
    dist.all_reduce(found)
    return found.item()


def training_of_torch(after_step: AfterStep) -> str:
    """A training of torch objects; its dropout uses torch's random numbers."""
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    model = prepare_model(net)
    optimizer = torch.optim.Adam(model.parameters())
    rows = torch.linspace(-1, 1, 96).reshape(24, 4)
    loader = prepare_data_loader(DataLoader(TensorDataset(rows), batch_size=2))
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for _ in state.epochs(2):
        for (batch,) in loader:
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            train.report({"loss": loss.item()})
            after_step(state.num_batches)
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.state_dict().values())).hexdigest()


def training_with_plain_state(after_step: AfterStep) -> str:
    """A training of a plain object: any stateful object can be tracked, even without a process group."""
    counter = Counter()
    state = train.track(counter=counter)
    for epoch in state.epochs(5):
        counter.seen.append(epoch)
        train.report({"epoch": epoch})
        after_step(epoch)
    return str(counter.seen)


class Counter:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def state_dict(self) -> dict[str, list[int]]:
        return {"seen": list(self.seen)}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self.seen = list(state["seen"])


class TestPlainWorkers(FrameworkContract):
    def make_config(self) -> BackendConfig:
        return BackendConfig()

    def total(self) -> Total | None:
        return None

    def tracked_training(self) -> TrackedTraining:
        return training_with_plain_state


@pytest.fixture
def torchs_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the variables that are set by joining a group in this process."""
    of_torch = ("TORCHELASTIC_RUN_ID", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "ACCELERATE_TORCH_DEVICE")
    for name in of_torch:
        monkeypatch.setenv(name, "")


@pytest.mark.usefixtures("torchs_variables")
class TestTorch(FrameworkContract):
    def make_config(self) -> BackendConfig:
        return TorchConfig(backend="gloo")

    def total(self) -> Total:
        return total_of_torch

    def tracked_training(self) -> TrackedTraining:
        return training_of_torch


@pytest.mark.usefixtures("torchs_variables")
class TestTorchScripts(FrameworkContract):
    def make_config(self) -> BackendConfig:
        return TorchScriptConfig()

    def total(self) -> Total:
        return total_of_torch

    def tracked_training(self) -> None:
        return None


# --- frameworks that are broken on purpose ---


@contextlib.contextmanager
def no_group(config: BackendConfig, place: RankAssignment, rendezvous: str | None, *, lasting: bool) -> Iterator[None]:
    yield


@contextlib.contextmanager
def swallows_errors(
    config: BackendConfig, place: RankAssignment, rendezvous: str | None, *, lasting: bool
) -> Iterator[None]:
    with contextlib.suppress(ValueError):
        yield


@dataclass(frozen=True)
class WithoutGroup(BackendConfig):
    entry: ClassVar[str | None] = f"{__name__}:no_group"


@dataclass(frozen=True)
class SwallowsErrors(BackendConfig):
    entry: ClassVar[str | None] = f"{__name__}:swallows_errors"


@dataclass
class Mutable:
    """Not frozen."""

    size: int = 1
    entry: ClassVar[str | None] = None
    preload: ClassVar[tuple[str, ...]] = ()
    warm: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class MisnamesModules(BackendConfig):
    preload: ClassVar[tuple[str, ...]] = "json"  # type: ignore[assignment]


def own(value: float) -> float:
    return value


def forgets(after_step: AfterStep) -> str:
    """A training that does not track all of its state."""
    counter = Counter()
    state = train.track(counter=Counter())
    for epoch in state.epochs(5):
        counter.seen.append(epoch)
        train.report({"epoch": epoch})
        after_step(epoch)
    return str(counter.seen)


def suite_of(
    make: Callable[[], BackendConfig], total: Total | None = None, training: TrackedTraining | None = None
) -> FrameworkContract:
    class Suite(FrameworkContract):
        def make_config(self) -> BackendConfig:
            return make()

        def total(self) -> Total | None:
            return total

        def tracked_training(self) -> TrackedTraining | None:
            return training

    return Suite()


def test_a_framework_without_a_group_fails_the_contract(tmp_path: Path) -> None:
    suite = suite_of(WithoutGroup, own)
    with pytest.raises(AssertionError):
        suite.test_all_ranks_are_in_one_group(tmp_path)


def test_a_framework_that_swallows_errors_fails_the_contract(tmp_path: Path) -> None:
    suite = suite_of(SwallowsErrors)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        suite.test_an_error_of_the_function_is_the_error_of_the_run(tmp_path)


def test_a_config_that_is_not_frozen_fails_the_contract() -> None:
    suite = suite_of(Mutable)  # type: ignore[arg-type]
    with pytest.raises(pytest.fail.Exception):
        suite.test_the_config_is_frozen_and_travels()


def test_a_config_that_misnames_modules_fails_the_contract() -> None:
    suite = suite_of(MisnamesModules)
    with pytest.raises(AssertionError):
        suite.test_modules_are_named_as_text()


def test_a_framework_that_forgets_state_fails_the_contract(tmp_path: Path) -> None:
    suite = suite_of(BackendConfig, training=forgets)
    with pytest.raises(AssertionError):
        suite.test_tracked_training_is_resumed_bit_for_bit(tmp_path)
