"""The vocabulary of Ray AIR: keys that were filled in by themselves, and how checkpoints were counted."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from headway import train
from headway.compat import air
from headway.compat.air import Checkpoint, session
from headway.compat.air.callbacks import Callback, CSVLoggerCallback, JsonLoggerCallback
from headway.compat.torch_profiler import TRACES, TorchWorkerProfiler
from support import fit, plain_trainer

FILLED_IN = """_time_this_iter_s _timestamp _training_iteration config date done episodes_total experiment_id
experiment_tag hostname iterations_since_restore node_ip pid time_since_restore time_this_iter_s time_total_s timestamp
timesteps_since_restore timesteps_total training_iteration trial_id warmup_time"""


def two_epochs(config: dict[str, Any]) -> None:
    first = 0
    if checkpoint := session.get_checkpoint():
        first = checkpoint.to_dict()["epoch"] + 1
    for epoch in range(first, config["epochs"]):
        session.report({"epoch": epoch}, checkpoint=Checkpoint.from_dict({"epoch": epoch, "model": {"w": 1.5}}))


def trainer(epochs: int, **options: Any) -> train.DataParallelTrainer:
    return plain_trainer(two_epochs, 2, {"epochs": epochs}, **options)


def test_reports_hold_what_was_filled_in() -> None:
    result = trainer(3).fit()
    metrics = result.metrics
    assert metrics is not None
    assert set(metrics) == {"epoch", *FILLED_IN.split()}
    assert (metrics["epoch"], metrics["training_iteration"], metrics["iterations_since_restore"]) == (2, 3, 3)
    assert re.fullmatch(r"[0-9a-f]{32}", metrics["experiment_id"])
    assert re.fullmatch(r"[0-9a-f]{5}_00000", metrics["trial_id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", metrics["date"])
    assert result.metrics_dataframe is not None
    assert list(result.metrics_dataframe["training_iteration"]) == [1, 2, 3]
    assert str(result.log_dir) == result.path


def test_runs_are_named_and_nested_as_trials(tmp_path: Path) -> None:
    made = air.DataParallelTrainer(
        two_epochs, train_loop_config={"epochs": 4}, run_config=train.RunConfig(storage_path=tmp_path)
    )
    made.fit()
    result = made.fit()
    assert len(list(tmp_path.iterdir())) in (1, 2), "one beside the other, not one in the other"
    assert result.metrics is not None
    assert result.metrics["done"] is True, "in the final one"
    assert result.checkpoint is not None
    experiment, trial, _, checkpoint = Path(result.checkpoint.path).relative_to(tmp_path).parts
    date = r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d"
    assert re.fullmatch(f"DataParallelTrainer_{date}", experiment)
    assert re.fullmatch(f"DataParallelTrainer_[0-9a-f]{{5}}_00000_0_{date}", trial)
    assert checkpoint == "checkpoint_000003"
    assert result.checkpoint.get_internal_representation() == ("local_path", result.checkpoint.path)


def test_what_goes_through_train_report_stays_as_it_is() -> None:
    def train_func() -> None:
        train.report({"a": 1}, checkpoint=train.Checkpoint.from_dict({"b": 2}))

    result = fit(train_func)
    assert result.metrics == {"a": 1}
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict() == {"b": 2}


def test_dict_checkpoints_have_extra_keys_and_are_counted_as_they_were() -> None:
    result = trainer(5).fit()
    assert result.checkpoint is not None
    found = result.checkpoint.to_dict()
    assert isinstance(found.pop("_timestamp"), int)
    assert found == {"epoch": 4, "model": {"w": 1.5}, "_preprocessor": None, "_current_checkpoint_id": 4}
    assert result.checkpoint.path.endswith("checkpoint_000004"), "numbers from 0"


def test_counting_continues_from_the_loaded_id_without_adding_one() -> None:
    first = trainer(2).fit().checkpoint
    assert first is not None
    for epochs, expected in ((4, 2), (5, 3)):
        again = train.DataParallelTrainer(
            two_epochs, train_loop_config={"epochs": epochs}, resume_from_checkpoint=first
        ).fit()
        assert again.checkpoint is not None
        assert again.checkpoint.to_dict()["_current_checkpoint_id"] == expected


def test_only_what_rank_zero_reports_is_used() -> None:
    def train_func() -> None:
        rank = session.get_world_rank()
        session.report({"rank": rank}, checkpoint=Checkpoint.from_dict({"rank": rank}))
        checkpoint = session.get_checkpoint()
        assert checkpoint is not None
        session.report({"rank": rank, "seen": checkpoint.to_dict()["rank"]})

    result = fit(train_func, 2)
    assert result.metrics is not None
    assert (result.metrics["rank"], result.metrics["seen"]) == (0, 0)
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["rank"] == 0


def test_callbacks_see_a_run_as_a_trial(tmp_path: Path) -> None:
    heard: list[Any] = []

    class Hear(Callback):
        def setup(self, *args: Any, **info: Any) -> None:
            heard.append("setup")

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            heard.append(("start", str(trial) == f"{trial.trainable_name}_{trial.trial_id}"))

        def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
            heard.append((iteration, result["epoch"], result["training_iteration"], trial.last_result.get("epoch")))

        def on_checkpoint(self, checkpoint: Any, **info: Any) -> None:
            heard.append(checkpoint.to_dict()["epoch"])

        def on_trial_complete(self, trial: Any, **info: Any) -> None:
            heard.append(trial.status)

        def on_trial_error(self, trial: Any, **info: Any) -> None:
            heard.append(trial.status)

        def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
            heard.append("end")

    def train_func() -> None:
        session.report({"epoch": 0})
        session.report({"epoch": 1}, checkpoint=Checkpoint.from_dict({"epoch": 1}))

    loggers = [JsonLoggerCallback(), CSVLoggerCallback()]
    result = fit(train_func, 2, callbacks=[Hear(), *loggers])
    assert heard == ["setup", ("start", True), (1, 0, 1, None), (2, 1, 2, 0), 1, "TERMINATED", "end"]
    lines = Path(result.path, "result.json").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1]
    assert Path(result.path, "progress.csv").read_text().count("\n") == 3

    heard.clear()

    def fail() -> None:
        train.report({"epoch": 0})
        raise ValueError

    with pytest.raises(train.TrainingFailedError):
        fit(fail, callbacks=[Hear()])
    assert heard[-3:] == [(1, 0, 1, None), "ERROR", "end"], "what another vocabulary reports is filled in"


def test_traces_travel_in_checkpoints() -> None:
    from torch.profiler import ProfilerActivity, profile

    def train_func() -> None:
        profiler = TorchWorkerProfiler()
        with profile(activities=[ProfilerActivity.CPU], on_trace_ready=profiler.trace_handler):
            sum(range(10))
        session.report({}, checkpoint=Checkpoint.from_dict(profiler.get_and_clear_profile_traces()))

    result = fit(train_func)
    assert result.checkpoint is not None
    [[name, content]] = result.checkpoint.to_dict()[TRACES]
    assert name.endswith(".pt.trace.json.gz")
    assert "traceEvents" in json.loads(gzip.decompress(base64.b64decode(content)))
