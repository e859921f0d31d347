"""The vocabulary of Ray AIR: keys that were filled in by themselves, and how checkpoints were counted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from headway import train
from headway.compat import air
from headway.compat.air import Checkpoint, session
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
    assert isinstance(found.pop("_timestamp"), float)
    assert found == {"epoch": 4, "model": {"w": 1.5}, "_preprocessor": None, "_current_checkpoint_id": 4}
    assert result.checkpoint.path.endswith("checkpoint_000004"), "numbers from 0"


def test_counting_goes_on_from_the_loaded_id_without_adding_one() -> None:
    first = trainer(2).fit().checkpoint
    assert first is not None
    for epochs, expected in ((4, 2), (5, 3)):
        again = train.DataParallelTrainer(
            two_epochs, train_loop_config={"epochs": epochs}, resume_from_checkpoint=first
        ).fit()
        assert again.checkpoint is not None
        assert again.checkpoint.to_dict()["_current_checkpoint_id"] == expected
