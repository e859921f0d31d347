"""Gradient buckets under DDP: a model that is wrapped again adds the ranks' gradients in the same order."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.utils.checkpoint import checkpoint

import headway.train.torch.model as model_module
from headway import train
from headway.train.torch import TorchTrainer, prepare_model

WIDTH = 32


class Shuffled(nn.Module):
    """Layers that are used in another order than they are defined in, one of them twice, one perhaps not at all."""

    def __init__(self, *, unused: bool = False) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 1)
        self.first = nn.Linear(8, WIDTH)
        self.middle = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.idle = nn.Linear(WIDTH, WIDTH) if unused else nn.Identity()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs).tanh()
        for layer in (*reversed(self.middle), self.middle[0]):
            hidden = layer(hidden).tanh()
        return self.head(hidden)


class Checkpointed(Shuffled):
    """Its backward pass runs forward passes again, so that hooks of one layer fire more than once."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs).tanh()
        for layer in (*self.middle, self.middle[0]):
            hidden = checkpoint(layer, hidden, use_reentrant=True).tanh()
        return self.head(hidden)


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(8, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))


def frozen() -> nn.Module:
    model = Shuffled()
    model.middle[1].requires_grad_(False)
    return model


def mixed() -> nn.Module:
    """Half of it in double precision: buckets of two kinds."""

    class Double(Shuffled):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head.double()(nn.functional.linear(inputs, self.first.weight).tanh().double())

    model = Double()
    model.head.double()
    for part in (model.middle, model.first.bias):
        part.requires_grad_(False)
    return model


def compressed(model: Any) -> None:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


SMALL = {"bucket_cap_mb": 0.005}  # a few layers each
CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], Callable[[Any], None]]] = {
    "one bucket": (Shuffled, {}, lambda model: None),
    "several buckets": (Shuffled, SMALL, lambda model: None),
    "gradients as views": (Shuffled, {**SMALL, "gradient_as_bucket_view": True}, lambda model: None),
    "unused parameters": (
        lambda: Shuffled(unused=True),
        {**SMALL, "find_unused_parameters": True},
        lambda model: None,
    ),
    "a static graph": (Shuffled, {**SMALL, "static_graph": True}, lambda model: None),
    "a static graph, unused": (
        lambda: Shuffled(unused=True),
        {**SMALL, "static_graph": True, "find_unused_parameters": True},
        lambda model: None,
    ),
    "a static graph, checkpointed": (Checkpointed, {**SMALL, "static_graph": True}, lambda model: None),
    "batch norm": (normalised, SMALL, lambda model: None),
    "frozen parameters": (frozen, SMALL, lambda model: None),
    "two types": (mixed, SMALL, lambda model: None),
    "a communication hook": (Shuffled, SMALL, compressed),
}


def step(model: nn.Module, number: int) -> None:
    """One step of plain gradient descent, with other rows on each rank."""
    chance = torch.Generator().manual_seed(1000 * number + train.get_context().get_world_rank())
    model.zero_grad()
    model(torch.randn(4, 8, generator=chance)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad


def wrapped(name: str, weights: Any) -> Any:
    make, options, prepare = CASES[name]
    torch.manual_seed(0)
    model = prepare_model(make(), parallel_strategy_kwargs=options)
    prepare(model)
    if weights is not None:
        model.module.load_state_dict(weights)
    return model


def differing(*names: str) -> list[str]:
    """Where a model that is wrapped again, after one of the first steps, ends with other weights than before."""
    found = []
    for name in names:
        whole, weights = wrapped(name, None), []
        for number in range(5):
            weights.append(copy.deepcopy(whole.module.state_dict()))
            step(whole, number)
        for begin in (1, 2, 3):
            model = wrapped(name, weights[begin])
            for number in range(begin, 5):
                step(model, number)
            pairs = zip(model.state_dict().values(), whole.state_dict().values(), strict=True)
            if not all(torch.equal(a, b) for a, b in pairs):
                found.append(f"{name}, from step {begin}")
    return found


def fit(function: Any, num_workers: int) -> train.Result:
    return TorchTrainer(function, scaling_config=train.ScalingConfig(num_workers)).fit()


@pytest.mark.parametrize(("num_workers", "names"), [(3, tuple(CASES)), (4, ("several buckets", "a static graph"))])
def test_a_model_that_is_wrapped_again_takes_the_same_steps(num_workers: int, names: tuple[str, ...]) -> None:
    assert fit(lambda: differing(*names), num_workers).return_value == []


def test_it_would_take_others_without_our_help() -> None:
    """Without this, the test above proves nothing."""

    def by_torch_alone() -> list[str]:
        model_module.fix_buckets = lambda model: None
        return differing("several buckets")

    assert fit(by_torch_alone, 3).return_value != []


def test_a_model_that_the_user_has_wrapped_is_taken_care_of_when_it_is_tracked() -> None:
    def buckets_rebuilt() -> bool:
        model = nn.parallel.DistributedDataParallel(Shuffled(), static_graph=True)
        train.track(model=model)
        return bool(model._has_rebuilt_buckets)

    assert fit(buckets_rebuilt, 3).return_value is True


def test_a_warning_names_the_reason_if_it_is_impossible(capfd: pytest.CaptureFixture[str]) -> None:
    def hook_comes_first() -> None:
        model = nn.parallel.DistributedDataParallel(Shuffled())
        compressed(model)
        train.track(model=model)

    fit(hook_comes_first, 3)
    said = capfd.readouterr().err
    assert said.count("model might not resume bit for bit: its gradient buckets change after the first step") == 1
    fit(hook_comes_first, 2)
    assert "gradient buckets" not in capfd.readouterr().err, "two ranks' numbers have one order only"
