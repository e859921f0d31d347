"""Frozen parameters and training modes are restored if training had changed them, and are otherwise the code's."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from headway.train.torch.model_modes import ModelModes


def parts() -> tuple[Any, ModelModes]:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 1))
    return model, ModelModes({"model": model})


def modes_of(model: nn.Module) -> tuple[list[bool], list[bool]]:
    return [each.requires_grad for each in model.parameters()], [each.training for each in model.modules()]


def test_changed_modes_are_restored_when_the_epoch_and_its_first_batch_begin() -> None:
    model, modes = parts()
    model[0].requires_grad_(False)
    modes.begin_epoch()
    model[0].requires_grad_(True)
    model[1].eval()
    modes.begin_epoch()
    at_epoch = modes_of(model)
    model.train()
    model[2].requires_grad_(False)
    at_save = modes_of(model)
    saved = modes.saved(in_loop=True, in_epoch=True)

    resumed, modes = parts()
    resumed[0].requires_grad_(False)
    modes.resume(saved)
    modes.begin_epoch()
    assert modes_of(resumed) == at_epoch
    modes.begin_first_batch()
    assert modes_of(resumed) == at_save
    assert modes.saved(in_loop=True, in_epoch=True) == saved


@pytest.mark.parametrize("frozen", [True, False])
def test_unchanged_modes_are_those_of_the_code(frozen: bool) -> None:
    """The code may have been changed for the resumed run."""
    model, modes = parts()
    model[0].requires_grad_(frozen)
    modes.begin_epoch()
    saved = modes.saved(in_loop=True, in_epoch=True)
    resumed, modes = parts()
    resumed[0].requires_grad_(not frozen)
    modes.resume(saved)
    modes.begin_epoch()
    modes.begin_first_batch()
    assert modes_of(resumed)[0][0] == (not frozen)


def test_a_save_of_an_older_version_has_no_modes() -> None:
    model, modes = parts()
    model.eval()
    before = modes_of(model)
    modes.resume({"epoch": 1})
    modes.begin_epoch()
    modes.begin_first_batch()
    assert modes_of(model) == before
