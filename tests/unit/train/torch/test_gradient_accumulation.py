"""Which gradients a checkpoint holds: those that a later optimizer step may use, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from headway.train.torch import gradient_accumulation

torch.optim.SGD([torch.zeros(1)]).zero_grad()  # what torch imports for this sets environment variables, once


@pytest.fixture(autouse=True)
def steps() -> Iterator[gradient_accumulation.Steps]:
    watching = gradient_accumulation.Steps()
    yield watching
    watching.close()


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def backward(model: nn.Module) -> None:
    model(torch.randn(4, 3)).square().sum().backward()


def names(model: nn.Module) -> list[str]:
    return sorted(gradient_accumulation.saved(model))


def test_a_gradient_is_pending_until_an_optimizer_has_stepped() -> None:
    model, optimizer = model_and_optimizer()
    assert names(model) == []
    for _ in range(3):
        optimizer.zero_grad()
        backward(model)
        assert names(model) == ["bias", "weight"]
        backward(model)
        optimizer.step()
    assert names(model) == []
    backward(model)
    assert names(model) == ["bias", "weight"], "added to what was left: the next step may use it"


def test_before_the_second_step_it_is_unknown_whether_gradients_are_replaced() -> None:
    model, optimizer = model_and_optimizer()
    backward(model)
    optimizer.step()
    assert names(model) == ["bias", "weight"]


def test_a_loop_that_never_replaces_its_gradients_has_them_saved() -> None:
    model, optimizer = model_and_optimizer()
    for _ in range(3):
        backward(model)
        optimizer.step()
    assert names(model) == ["bias", "weight"]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, *, clears: bool) -> None:
    if clears:
        optimizer.zero_grad()
    backward(model)
    optimizer.step()


def test_gradients_that_are_carried_over_once_are_saved_from_then_on(steps: gradient_accumulation.Steps) -> None:
    model, optimizer = model_and_optimizer()
    for _ in range(2):
        step(model, optimizer, clears=True)
    assert names(model) == []
    assert not steps.keep_gradients
    step(model, optimizer, clears=False)
    assert steps.keep_gradients
    assert steps.kept_late, "they were missing from earlier saves"
    step(model, optimizer, clears=True)
    assert names(model) == ["bias", "weight"]


def test_a_resumed_process_saves_gradients_that_were_carried_over_before(steps: gradient_accumulation.Steps) -> None:
    steps.kept_before_restart = True
    model, optimizer = model_and_optimizer()
    for _ in range(3):
        step(model, optimizer, clears=True)
        assert names(model) == ["bias", "weight"]
    assert steps.keep_gradients


def test_gradients_that_are_never_cleared_were_never_missing(steps: gradient_accumulation.Steps) -> None:
    model, optimizer = model_and_optimizer()
    for _ in range(3):
        step(model, optimizer, clears=False)
    assert steps.keep_gradients
    assert not steps.kept_late


def test_zeros_are_named_but_take_no_room() -> None:
    model, optimizer = model_and_optimizer()
    for _ in range(3):
        backward(model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    saved = gradient_accumulation.saved(model)
    assert saved == {"weight": None, "bias": None}
    other, _ = model_and_optimizer()
    gradient_accumulation.load(other, saved)
    assert other.weight.grad is not None
    assert not other.weight.grad.any(), "a step with zeros is not the same as no step"


def test_only_the_parameters_that_a_backward_pass_has_reached() -> None:
    both = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    first, second = (torch.optim.SGD(both[name].parameters(), lr=0.1) for name in "ab")
    for _ in range(2):
        for optimizer in (first, second):
            optimizer.zero_grad()
        both["b"](both["a"](torch.randn(4, 3))).sum().backward()
        first.step()
        second.step()
    both["b"](torch.randn(4, 3)).sum().backward()
    assert names(both) == ["b.bias", "b.weight"]


def test_an_optimizer_behind_a_gradient_scaler_counts_too() -> None:
    model, optimizer = model_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 3)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert names(model) == []


@pytest.mark.parametrize("layout", ["plain", "channels last", "sparse"])
def test_what_was_saved_is_what_comes_back(layout: str) -> None:
    def make() -> nn.Module:
        if layout == "sparse":
            return nn.Embedding(5, 2, sparse=True)
        made = nn.Conv2d(2, 3, 3)
        return made.to(memory_format=torch.channels_last) if layout == "channels last" else made

    model, other = make(), make()
    inputs: Any = torch.tensor([1, 3, 3]) if layout == "sparse" else torch.randn(1, 2, 5, 5)
    model(inputs).square().sum().backward()
    gradient_accumulation.load(other, gradient_accumulation.saved(model))
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert theirs.grad.layout is ours.grad.layout
        assert torch.equal(ours.grad.to_dense(), theirs.grad.to_dense())


def test_another_number_of_ranks_takes_over_the_average() -> None:
    ranks: list[gradient_accumulation.Saved] = [
        {"a": torch.tensor([1.0, 2.0]), "b": None},
        {"a": torch.tensor([3.0, 2.0])},
    ]
    found = gradient_accumulation.mean(ranks)
    assert torch.equal(found["a"], torch.tensor([2.0, 2.0]))  # type: ignore[arg-type]
    assert found["b"] is None
