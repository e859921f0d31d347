"""Tests of every engine against the contract of engines; broken engines must fail it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.core.config import ScalingConfig
from headway.core.messages import FromWorker, Report, ToController, WorkerExited
from headway.core.task import Task
from headway.engine.base import Engine
from headway.engine.inline import InlineEngine
from headway.engine.local import LocalEngine
from headway.engine.persistent_workers import PersistentEngine
from headway.testing.contracts.engine import (
    NUM_REPORTS,
    EngineContract,
    Function,
    MakeEngine,
    die,
    fail,
    report_forever,
    report_often,
    report_twice,
)
from headway.testing.fake import DIE, FINISH, RAISE, FakeEngine, Say, Script

SCRIPTS: dict[Function, Script] = {
    report_twice: Script((Say(), Say()), FINISH),
    report_often: Script((Say(),) * NUM_REPORTS, FINISH),
    report_forever: Script((Say(),) * 100_000, FINISH),
    fail: Script((), RAISE),
    die: Script((), DIE),
}


@pytest.fixture
def two_licences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_RESOURCES", json.dumps({"licence": 2}))


class TestLocalEngine(EngineContract):
    exclusive = True

    @pytest.fixture
    def make_engine(self, two_licences: None) -> MakeEngine:
        return lambda function, num_workers, run: LocalEngine(
            ScalingConfig(num_workers, resources_per_worker={"licence": 2 / num_workers})
        )


class TestPersistentEngine(EngineContract):
    exclusive = True

    @pytest.fixture
    def make_engine(self, two_licences: None) -> MakeEngine:
        return lambda function, num_workers, run: PersistentEngine(
            ScalingConfig(num_workers, resources_per_worker={"licence": 2 / num_workers})
        )


class TestInlineEngine(EngineContract):
    num_workers = 1
    has_processes = False
    exclusive = True

    @pytest.fixture
    def make_engine(self, two_licences: None) -> MakeEngine:
        return lambda function, num_workers, run: InlineEngine(
            ScalingConfig(0, resources_per_worker={"licence": 2}), Task(function)
        )


class TestFakeEngine(EngineContract):
    has_processes = False

    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        return fake(FakeEngine)


def fake(kind: type[FakeEngine]) -> MakeEngine:
    def make(function: Function, num_workers: int, run: Path) -> Engine:
        return kind(run, [[SCRIPTS[function]] * num_workers])

    return make


# --- broken engines ---


class ExitsTwice(FakeEngine):
    def _say(self, index: int, message: ToController) -> None:
        super()._say(index, message)
        if isinstance(message, WorkerExited):
            super()._say(index, message)


class LosesExits(FakeEngine):
    def _say(self, index: int, message: ToController) -> None:
        if not isinstance(message, WorkerExited):
            super()._say(index, message)


class LosesExitsOfTheKilled(FakeEngine):
    def _say(self, index: int, message: ToController) -> None:
        if not (isinstance(message, WorkerExited) and message.code == -9):
            super()._say(index, message)


class SwapsReports(FakeEngine):
    _kept: Report | None = None

    def _say(self, index: int, message: ToController) -> None:
        if isinstance(message, Report) and message.seq == 5 and index == 0:
            self._kept = message
            return
        super()._say(index, message)
        if self._kept is not None and isinstance(message, Report) and index == 0:
            kept, self._kept = self._kept, None
            super()._say(index, kept)


class ExitsBeforeItsLastMessage(FakeEngine):
    def _say(self, index: int, message: ToController) -> None:
        if isinstance(message, Report) and message.seq == 1:
            vars(self).setdefault("_late", {})[index] = message
            return
        super()._say(index, message)
        if isinstance(message, WorkerExited) and (late := vars(self).get("_late", {}).pop(index, None)) is not None:
            super()._say(index, late)


class ForgetsAttempts(FakeEngine):
    def _say(self, index: int, message: ToController) -> None:
        self._deliver([FromWorker(1, index, message)])


class BlamesWorkersLaunchedMeanwhile(FakeEngine):
    def _say(self, index: int, message: ToController) -> None:
        attempt = self._attempt
        super()._say(index, message)
        if self._attempt != attempt:
            super()._say(index, WorkerExited(code=-9))


class BlamesTheReplacement(FakeEngine):
    def launch(self, attempt: int, num_workers: int) -> None:
        replaced = [index for index, worker in enumerate(self._workers) if worker.phase != "exited"]
        super().launch(attempt, num_workers)
        for index in replaced:
            self._say(index, WorkerExited(code=-9))


class NeverGrants(FakeEngine):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.resources.request = lambda owner: None  # type: ignore[method-assign]


class LosesPosts(FakeEngine):
    _opened = False

    def open(self, deliver: Callable[..., None]) -> None:
        super().open(deliver)
        self._opened = True

    def post(self, event: object) -> None:
        if self._opened or "Resources" in type(event).__name__:
            super().post(event)


class ReleasesFirst(LocalEngine):
    def close(self) -> None:
        self.resources.release()
        time.sleep(0.2)
        super().close()


class NeverReleases(InlineEngine):
    def close(self) -> None:
        pass


class RunsOnWhenKilled(FakeEngine):
    def kill(self) -> None:
        pass


def failures_of(kind: type[FakeEngine], directory: Path) -> set[str]:
    """The tests of the contract that this engine fails."""

    class Suite(EngineContract):
        has_processes = False
        patience_s = 0.5

    failed = set()
    for name in (name for name in dir(Suite) if name.startswith("test_")):
        test, run = getattr(Suite(), name), directory / name
        run.mkdir(parents=True)
        drivers = Suite.drivers(fake(kind), run)
        try:
            fixtures = {"make_engine": fake(kind), "tmp_path": run, "drive": next(drivers)}
            test(**{name: value for name, value in fixtures.items() if name in test.__func__.__annotations__})
        except pytest.skip.Exception:
            pass
        except Exception:
            failed.add(name)
        finally:
            drivers.close()  # type: ignore[attr-defined]
    return failed


ORDER = {
    "test_a_worker_sends_ready_then_its_messages_and_exits_once",
    "test_messages_of_a_worker_keep_their_order",
}


def test_the_fake_engine_fails_nothing(tmp_path: Path) -> None:
    assert failures_of(FakeEngine, tmp_path) == set()


@pytest.mark.parametrize(
    ("kind", "failed"),
    [
        (ExitsTwice, {"test_a_worker_sends_ready_then_its_messages_and_exits_once"}),
        (LosesExits, {"test_an_engine_launches_again_and_again"}),
        (LosesExitsOfTheKilled, {"test_killed_workers_exit_once_and_send_nothing_afterwards"}),
        (SwapsReports, {"test_messages_of_a_worker_keep_their_order"}),
        (ExitsBeforeItsLastMessage, ORDER),
        (ForgetsAttempts, {"test_an_engine_launches_again_and_again"}),
        (BlamesWorkersLaunchedMeanwhile, {"test_a_launch_from_inside_deliver_gets_the_events_of_its_own_workers"}),
        (BlamesTheReplacement, {"test_a_launch_replaces_running_workers_without_exits"}),
        (NeverGrants, ORDER),
        (LosesPosts, {"test_an_event_that_is_posted_before_open_is_not_lost"}),
        (RunsOnWhenKilled, {"test_killed_workers_exit_once_and_send_nothing_afterwards"}),
    ],
)
def test_a_broken_engine_fails_the_contract(kind: type[FakeEngine], failed: set[str], tmp_path: Path) -> None:
    assert failures_of(kind, tmp_path) >= failed


def test_an_engine_that_releases_before_its_workers_have_ended_fails_the_contract(
    two_licences: None, tmp_path: Path
) -> None:
    def make_engine(function: Function, num_workers: int, run: Path) -> Engine:
        return ReleasesFirst(ScalingConfig(num_workers, resources_per_worker={"licence": 2 / num_workers}))

    suite, drivers = TestLocalEngine(), TestLocalEngine.drivers(make_engine, tmp_path)
    with contextlib.closing(drivers), pytest.raises(AssertionError):  # type: ignore[type-var]
        suite.test_close_releases_the_resources_when_no_worker_is_left(next(drivers), make_engine, tmp_path)


def test_an_engine_that_does_not_release_fails_the_contract(two_licences: None, tmp_path: Path) -> None:
    made: list[NeverReleases] = []

    def make_engine(function: Function, num_workers: int, run: Path) -> Engine:
        made.append(NeverReleases(ScalingConfig(0, resources_per_worker={"licence": 2}), Task(function)))
        return made[-1]

    class Suite(TestInlineEngine):
        __test__ = False
        patience_s = 0.2

    suite, drivers = Suite(), Suite.drivers(make_engine, tmp_path)
    with contextlib.closing(drivers), pytest.raises(AssertionError):  # type: ignore[type-var]
        suite.test_an_engine_that_was_never_opened_releases_its_resources(next(drivers), make_engine, tmp_path)
    for engine in made:
        engine.resources.release()
