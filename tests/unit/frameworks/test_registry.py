"""The registered frameworks: their counts of collectives, and which of them tracks given objects."""

from __future__ import annotations

import sys
import types

import pytest
import torch
import torch.distributed as dist

import headway.frameworks.torch
import headway.train.torch.autosave
from headway.core.errors import ConfigError
from headway.frameworks import registry
from headway.frameworks.registry import num_collectives


def test_a_module_that_another_thread_is_importing_has_begun_no_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "headway.frameworks.torch"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert num_collectives() == (0, 0)


def test_a_group_that_another_thread_is_destroying_has_begun_no_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)  # but the group no longer exists when it is used
    assert headway.frameworks.torch.num_collectives() == (0, 0)


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """An adapter for an imported framework called ``other``."""
    module = types.ModuleType("other_tracking")
    vars(module).update(can_track=lambda thing: thing == "of other", track=lambda **things: things)
    monkeypatch.setitem(sys.modules, "other", types.ModuleType("other"))
    monkeypatch.setitem(sys.modules, "other_tracking", module)
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    registry.register(registry.Framework(package="other", adapter="other_adapter", tracking="other_tracking"))
    return module


def test_things_are_tracked_by_the_framework_that_they_belong_to(other: types.ModuleType) -> None:
    assert registry.tracking_of(["plain", "of other"]) is other
    assert registry.tracking_of(["plain", torch.nn.Linear(1, 1)]) is headway.train.torch.autosave
    assert registry.tracking_of(["plain"]) is headway.train.torch.autosave


def test_collectives_of_all_frameworks_are_counted(other: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = types.ModuleType("other_adapter")
    vars(adapter).update(num_collectives=lambda: (3, 2))
    monkeypatch.setitem(sys.modules, "other_adapter", adapter)
    assert num_collectives() == (3, 2)


def test_without_a_framework_nothing_can_be_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = registry.Framework(package="not_installed", tracking="not_installed.tracking")
    monkeypatch.setattr(registry, "SHIPPED", ())
    monkeypatch.setattr(registry, "_registered", {"not_installed": missing})
    with pytest.raises(ConfigError, match="needs a framework: install not_installed"):
        registry.tracking_of([])
