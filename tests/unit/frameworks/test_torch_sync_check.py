"""The warning about models that are not synchronized: logged once, and never for synchronized models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

from headway.core.messages import RankAssignment
from headway.frameworks import torch_sync_check
from headway.frameworks.torch_sync_check import ENOUGH, notice_separate_models


@pytest.fixture(autouse=True)
def nobody_has_imported_lightning(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch_sync_check, "_has_lightning", lambda: False)
    before = dict(hooks)
    yield
    assert dict(hooks) == before, "no hook is left behind"


class Training:
    """A loop whose collectives the test counts by hand."""

    def __init__(self, world_size: int = 2, rank: int = 0) -> None:
        self.place = RankAssignment(rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size)
        self.collectives = 0

    def step(self) -> None:
        """Do what every optimizer does in step(), without the imports of torch's first step."""
        for hook in hooks.values():
            hook(None, (), {})  # type: ignore[arg-type]

    def run(self, num_steps: int, *, before: int = 0, each: int = 0, every: int = 1, after: int = 0) -> None:
        with notice_separate_models(self.place, lambda: self.collectives):
            self.collectives += before
            for step in range(num_steps):
                if step % every == 0:
                    self.collectives += each
                self.step()
            self.collectives += after


@pytest.mark.parametrize("num_steps", [1, 2, ENOUGH - 1, ENOUGH, 3 * ENOUGH])
def test_steps_without_a_collective_are_reported_once(num_steps: int, capsys: pytest.CaptureFixture[str]) -> None:
    Training().run(num_steps)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("headway: there are 2 workers, but rank 0 took ")
    assert "prepare_model(model)" in line


def test_collectives_of_metrics_before_the_first_step_hide_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Training().run(ENOUGH, before=7, after=7)
    assert f"rank 0 took {ENOUGH} optimizer steps without" in capsys.readouterr().err


@pytest.mark.parametrize(
    "loop",
    [
        {"num_steps": 0},
        {"num_steps": 1, "each": 1},
        {"num_steps": 300, "before": 3, "each": 1},
        {"num_steps": 300, "each": 1, "every": ENOUGH - 1},
        {"num_steps": 10, "after": 1},
    ],
    ids=str,
)
def test_no_warning_if_ranks_exchange_anything(loop: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    Training().run(**loop)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("where", [{"world_size": 1}, {"rank": 1}])
def test_one_worker_and_other_ranks_are_silent(where: dict[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    Training(**where).run(ENOUGH)
    assert capsys.readouterr().err == ""


def test_hooks_of_others_are_called_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[int] = []

    class WithAnother(Training):
        def step(self) -> None:
            hooks.setdefault(-1, lambda *_: calls.append(1))  # registered later, called later
            super().step()

    WithAnother().run(5, each=1)
    del hooks[-1]
    assert len(calls) == 5


def test_a_function_that_raises_has_other_worries(capsys: pytest.CaptureFixture[str]) -> None:
    training = Training()

    def fail() -> None:
        with notice_separate_models(training.place, lambda: 0):
            training.step()
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert capsys.readouterr().err == ""
