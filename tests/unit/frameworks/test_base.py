"""What is asked of a framework while it may just be coming or going."""

from __future__ import annotations

import sys
import types

import pytest
import torch.distributed as dist

import headway.frameworks.torch
from headway.frameworks.base import num_collectives


def test_a_module_that_another_thread_is_importing_has_begun_no_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "headway.frameworks.torch"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert num_collectives() == (0, 0)


def test_a_group_that_another_thread_is_destroying_has_begun_no_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)  # and when it is asked for, it is gone
    assert headway.frameworks.torch.num_collectives() == (0, 0)
