"""Tests of every tracker and logging callback against the contract of trackers; broken ones must fail it."""

from __future__ import annotations

import csv
import json
import struct
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headway.compat import sgd
from headway.compat.air import callbacks as air
from headway.core import phrases
from headway.core.callback import TrainRunContext, UserCallback
from headway.core.config import RunConfig, ScalingConfig
from headway.observe.trackers import MLflow, TensorBoard, Tracker, Wandb, numbers
from headway.testing.contracts.tracker import TrackerContract


class AsTracker:
    """A callback as a tracker; it is called as in a run of one worker."""

    def __init__(self, callback: UserCallback) -> None:
        self._callback = callback

    def start(self, name: str, config: Mapping[str, Any], folder: str) -> None:
        self._context = TrainRunContext(
            run_id="id",
            run_path=folder,
            run_config=RunConfig(),
            scaling_config=ScalingConfig(),
            train_loop_config=dict(config),
        )
        self._callback.before_run(self._context)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self._callback.after_report(self._context, [{**metrics, "_training_iteration": step}], None)

    def end(self, *, failed: bool) -> None:
        self._callback.after_run(self._context, ValueError() if failed else None)


def flat(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Flatten metrics, without the values that callbacks add."""
    found = {name: value for name, value in phrases.flat(dict(metrics)).items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in found.items() if not name.startswith(("_", "time"))}


def from_csv(path: Path) -> list[dict[str, float]]:
    with path.open(newline="", encoding="utf-8", errors="backslashreplace") as file:
        return [{name: number(text) for name, text in row.items()} for row in csv.DictReader(file)]


def number(text: str) -> float:
    try:
        return {"True": 1.0, "False": 0.0}[text] if text in ("True", "False") else float(text)
    except ValueError:
        return float("nan")


class ContractOfCallback(TrackerContract):
    @abstractmethod
    def callback(self) -> UserCallback: ...

    def make(self, directory: Path) -> Tracker:
        return AsTracker(self.callback())


class TestJsonOfRaySGD(ContractOfCallback):
    def callback(self) -> UserCallback:
        return sgd.JsonLoggerCallback()

    def recorded(self, directory: Path) -> Sequence[Mapping[str, float]]:
        return [flat(result) for [result] in json.loads((directory / "results.json").read_text())]


class TestCsvOfRaySGD(ContractOfCallback):
    def callback(self) -> UserCallback:
        return sgd.CSVCallback()

    def recorded(self, directory: Path) -> Sequence[Mapping[str, float]]:
        path = directory / "results.csv"
        return from_csv(path) if path.exists() else []


class TestJsonOfTune(ContractOfCallback):
    def callback(self) -> UserCallback:
        return air.JsonLoggerCallback()

    def recorded(self, directory: Path) -> Sequence[Mapping[str, float]]:
        return [flat(json.loads(line)) for line in (directory / "result.json").read_text().splitlines()]


class TestCsvOfTune(ContractOfCallback):
    def callback(self) -> UserCallback:
        return air.CSVLoggerCallback()

    def recorded(self, directory: Path) -> Sequence[Mapping[str, float]]:
        path = directory / "progress.csv"
        return from_csv(path) if path.exists() else []


def scalars(directory: Path, prefix: str) -> list[dict[str, float]]:
    """The scalars in TensorBoard's event files, by step."""
    from tensorboardX.proto import event_pb2

    found: dict[int, dict[str, float]] = {}
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for record in records(path.read_bytes()):
            event = event_pb2.Event.FromString(record)
            for value in event.summary.value:
                found.setdefault(event.step, {})[value.tag.removeprefix(prefix)] = value.simple_value
    return [found[step] for step in sorted(found)]


def records(data: bytes) -> Iterator[bytes]:
    """A length, its checksum, a record, its checksum."""
    while data:
        [length] = struct.unpack("<Q", data[:8])
        yield data[12 : 12 + length]
        data = data[16 + length :]


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRC32C_SW_MODE", "auto")  # it is set by what TensorBoard needs
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


@pytest.mark.usefixtures("no_variables")
class TestTensorBoard(TrackerContract):
    def make(self, directory: Path) -> Tracker:
        return TensorBoard("prefix/")

    def recorded(self, directory: Path) -> Sequence[Mapping[str, float]]:
        return scalars(directory, "prefix/")


@pytest.mark.usefixtures("no_variables")
class TestTensorBoardOfRaySGD(ContractOfCallback):
    def callback(self) -> UserCallback:
        return sgd.TBXLoggerCallback()

    def recorded(self, directory: Path) -> Sequence[Mapping[str, float]]:
        return scalars(directory, "ray/train/")


@pytest.mark.usefixtures("no_variables")
class TestTensorBoardOfTune(ContractOfCallback):
    def callback(self) -> UserCallback:
        return air.TBXLoggerCallback()

    def recorded(self, directory: Path) -> Sequence[Mapping[str, float]]:
        return scalars(directory, "ray/tune/")


class ContractOfMlflow(ContractOfCallback):
    uri = ""

    def recorded(self, directory: Path) -> Sequence[Mapping[str, float]]:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        experiments = [each.experiment_id for each in client.search_experiments()]
        run = client.search_runs(experiments, order_by=["attributes.start_time DESC"])[0]
        found: dict[int, dict[str, float]] = {}
        for name in run.data.metrics:
            for each in client.get_metric_history(run.info.run_id, name):
                found.setdefault(each.step, {})[name] = each.value
        return [found[step] for step in sorted(found)]

    @pytest.fixture(autouse=True)
    def _store(self, tmp_path_factory: pytest.TempPathFactory, no_variables: None) -> None:
        self.uri = f"file://{tmp_path_factory.mktemp('mlruns')}"


class TestMlflow(ContractOfMlflow):
    def make(self, directory: Path) -> Tracker:
        return MLflow(self.uri, experiment_name="contract")

    def callback(self) -> UserCallback:
        raise NotImplementedError


class TestMlflowOfRaySGD(ContractOfMlflow):
    def callback(self) -> UserCallback:
        return sgd.MlflowCallback(self.uri, experiment_name="contract")


class TestMlflowOfTune(ContractOfMlflow):
    def callback(self) -> UserCallback:
        return air.MLflowLoggerCallback(self.uri, experiment_name="contract")


class FakeWandb:
    """The part of the package that Headway calls; the real package is large and starts a service."""

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []

    def init(self, **options: Any) -> FakeWandb:
        self.logged = []
        return self

    def log(self, found: dict[str, float], step: int) -> None:
        self.logged.append(found)

    def finish(self, exit_code: int) -> None:
        pass


class ContractOfWandb(ContractOfCallback):
    @pytest.fixture(autouse=True)
    def _package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.package = FakeWandb()
        monkeypatch.setitem(sys.modules, "wandb", self.package)

    def recorded(self, directory: Path) -> Sequence[Mapping[str, float]]:
        return self.package.logged


class TestWandb(ContractOfWandb):
    def make(self, directory: Path) -> Tracker:
        return Wandb(project="contract")

    def callback(self) -> UserCallback:
        raise NotImplementedError


class TestWandbOfRaySGD(ContractOfWandb):
    def callback(self) -> UserCallback:
        return sgd.WandbCallback(project="contract")


class TestWandbOfTune(ContractOfWandb):
    def callback(self) -> UserCallback:
        return air.WandbLoggerCallback(project="contract")


# --- trackers that are broken on purpose ---


@dataclass
class Remembers:
    """A correct tracker."""

    heard: list[dict[str, float]] = field(default_factory=list)

    def start(self, name: str, config: Mapping[str, Any], folder: str) -> None:
        self.heard.clear()

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self.heard.append(numbers(metrics))

    def end(self, *, failed: bool) -> None:
        pass


class Reverses(Remembers):
    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self.heard.insert(0, numbers(metrics))


class IgnoresNested(Remembers):
    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self.heard.append({name: value for name, value in metrics.items() if isinstance(value, int | float)})


class TakesNumbersOnly(Remembers):
    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self.heard.append({name: float(value) for name, value in phrases.flat(dict(metrics)).items()})


class Consumes(Remembers):
    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        super().log(metrics, step)
        assert isinstance(metrics, dict)
        metrics.clear()


class NeverForgets(Remembers):
    def start(self, name: str, config: Mapping[str, Any], folder: str) -> None:
        pass


class WantsJson(Remembers):
    def start(self, name: str, config: Mapping[str, Any], folder: str) -> None:
        super().start(name, json.loads(json.dumps(config)), folder)


def failures_of(tracker: type[Remembers], directory: Path) -> set[str]:
    """The tests of the contract that this tracker fails."""

    class Suite(TrackerContract):
        def make(self, directory: Path) -> Tracker:
            self.made = tracker()
            return self.made

        def recorded(self, directory: Path) -> Sequence[Mapping[str, float]]:
            return self.made.heard

    failed = set()
    for name in (name for name in dir(Suite) if name.startswith("test_")):
        place = directory / name
        place.mkdir()
        try:
            getattr(Suite(), name)(place)
        except Exception:
            failed.add(name)
    return failed


@pytest.mark.parametrize(
    ("tracker", "failed"),
    [
        (Remembers, set()),
        (Reverses, {"test_metrics_arrive_in_their_order"}),
        (IgnoresNested, {"test_nested_metrics_arrive_by_their_path"}),
        (TakesNumbersOnly, {"test_values_that_are_no_numbers_do_no_harm"}),
        (Consumes, {"test_metrics_and_config_are_left_unchanged"}),
        (NeverForgets, {"test_a_tracker_serves_one_run_after_another"}),
        (WantsJson, {"test_a_config_may_hold_any_objects"}),
    ],
)
def test_a_broken_tracker_fails_the_contract(tracker: type[Remembers], failed: set[str], tmp_path: Path) -> None:
    assert failures_of(tracker, tmp_path) == failed
