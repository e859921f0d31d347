"""Callbacks are told how a run ended, even after an internal error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.control.controller import Controller
from headway.control.run_plan import RunPlan
from headway.core.callback import TrainRunContext, UserCallback
from headway.core.config import RunConfig, ScalingConfig
from headway.observe.run_observer import RunObservers
from headway.storage.run.opening import open_run
from headway.testing.fake import FINISH, FakeEngine, Say, Script


class Breaks(FakeEngine):
    """An engine that raises an internal error."""

    def pump(self, timeout_s: float | None) -> None:
        raise ZeroDivisionError("ours")


class Heard(UserCallback):
    def __init__(self) -> None:
        self.ends: list[Any] = []

    def after_run(self, run_context: TrainRunContext, error: BaseException | None) -> None:
        self.ends.append(error)


def run(folder: Path, kind: type[FakeEngine]) -> Heard:
    heard = Heard()
    config = RunConfig(name="run", storage_path=folder, callbacks=[heard])
    context = TrainRunContext(run_id="x", run_config=config, scaling_config=ScalingConfig(1))
    rundir = open_run(config.path, "auto")
    engine = kind(rundir.path, [[Script((Say(),), FINISH)]], 0)
    engine.resources.request("run")
    try:
        Controller(RunPlan(context=context, task=b""), engine, rundir, RunObservers([])).run()
    except ZeroDivisionError:
        pass
    finally:
        rundir.close()
    return heard


@pytest.mark.parametrize(("kind", "end"), [(FakeEngine, type(None)), (Breaks, ZeroDivisionError)])
def test_callbacks_receive_the_end_once_even_after_an_internal_error(tmp_path: Path, kind: Any, end: type) -> None:
    assert [type(error) for error in run(tmp_path, kind).ends] == [end]
