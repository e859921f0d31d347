"""The description of a request: complete for restore(), readable for people, and without secrets."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from headway.core.config import CheckpointConfig, RunConfig, ScalingConfig
from headway.core.task import Task
from headway.train.launch.description import opening_of
from headway.train.launch.request import TrainRequest


def train_func() -> None:
    pass


def request(config: object = None, task: Task | None = None) -> TrainRequest:
    return TrainRequest(
        kind="TorchTrainer",
        task=task or Task(train_func),
        train_loop_config=config,
        scaling=ScalingConfig(num_workers=(1, 2)),
        run=RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=3)),
    )


@dataclass
class Config:
    rate: float = 0.5
    api_key: str = "hidden"


def test_configs_can_be_restored_from_it() -> None:
    opening = opening_of(request({"rate": 0.5}), {}).to_json()
    assert opening["trainer"] == "TorchTrainer"
    assert opening["function"] == "train_func"
    assert opening["train_loop_config"] == {"rate": 0.5}
    assert opening["scaling_config"]["num_workers"] == [1, 2]
    assert opening["checkpoint_config"]["num_to_keep"] == 3


def test_secrets_are_left_out_and_named() -> None:
    opening = opening_of(request({"rate": 0.5, "api_key": "hidden"}), {}).to_json()
    assert "hidden" not in str(opening)
    assert opening["train_loop_config_incomplete"] == ["api_key"]


def test_an_object_is_described_by_its_fields_and_its_class() -> None:
    opening = opening_of(request(Config()), {}).to_json()
    assert opening["train_loop_config"]["rate"] == 0.5
    assert opening["train_loop_config_type"].endswith("test_description.Config")
    assert "hidden" not in str(opening)


def test_a_script_is_named_with_its_arguments() -> None:
    call = functools.partial(train_func, "train.py", ["--epochs", "3", "--token=hidden"])
    opening = opening_of(request(task=Task(call)), {}).to_json()
    assert opening["function"].startswith("train_func train.py --epochs 3")
    assert "hidden" not in opening["function"]


def test_the_fingerprint_is_that_of_the_function_behind_a_partial() -> None:
    plain = opening_of(request(), {}).to_json()["code"]
    assert plain is not None
    assert opening_of(request(task=Task(functools.partial(train_func))), {}).to_json()["code"] == plain
    assert opening_of(request(task=Task(print)), {}).code is None
