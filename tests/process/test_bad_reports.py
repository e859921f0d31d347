"""Values that report() and return refuse: on the worker, at once, naming the key."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from headway import train
from support import fit


def complaint(function: Any) -> str:
    with pytest.raises(train.TrainingFailedError) as caught:
        fit(function)
    cause = caught.value.__cause__
    assert isinstance(cause, ValueError | train.StorageError), repr(cause)
    return str(cause)


def test_tensors_in_metrics_are_refused_with_key_and_remedy() -> None:
    text = complaint(lambda: train.report({"train": {"loss": torch.ones(1)}}))
    assert text == "metrics['train/loss'] is a torch.Tensor: use .item() for a number, .cpu().numpy() for an array"


def test_models_in_metrics_are_refused() -> None:
    text = complaint(lambda: train.report({"model": torch.nn.Linear(1, 1)}))
    assert "metrics['model'] is a torch.nn.modules.linear.Linear: save it in a checkpoint" in text


def test_tensors_in_the_return_value_are_refused() -> None:
    text = complaint(lambda: {"losses": [0.1, torch.zeros(1)]})
    assert text.startswith("the training function returned a torch.Tensor['losses/1']: use .item()")


def test_other_objects_in_metrics_are_refused() -> None:
    assert "metrics['path'] is a pathlib.PosixPath" in complaint(lambda: train.report({"path": Path("x")}))


def test_metrics_must_be_a_dict() -> None:
    assert complaint(lambda: train.report(0.5)) == "report() takes a dict of metrics, got float"  # type: ignore[arg-type]


def test_the_checkpoint_argument_must_be_a_checkpoint() -> None:
    text = complaint(lambda: train.report({}, checkpoint="/tmp"))  # type: ignore[arg-type]
    assert text == "checkpoint must be a Checkpoint, got str: use Checkpoint.from_directory(path) or from_dict(data)"


def test_a_missing_checkpoint_directory_is_refused() -> None:
    text = complaint(lambda: train.report({}, checkpoint=train.Checkpoint("/nowhere")))
    assert "the reported checkpoint /nowhere is not a directory" in text


def test_an_empty_checkpoint_is_refused() -> None:
    def train_func() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train.report({}, checkpoint=train.Checkpoint(folder))

    assert "contains no files" in complaint(train_func)


def test_deeply_nested_metrics_are_refused_in_one_sentence() -> None:
    def train_func() -> None:
        value: Any = 1
        for _ in range(5000):
            value = {"a": value}
        train.report({"loss": 1.0, "tree": value})

    text = complaint(train_func)
    assert text.startswith("metrics['tree/a/a/")
    assert text.endswith("is nested more than 100 deep: flatten it, or save it in a checkpoint")


def test_a_return_value_that_contains_itself_comes_back() -> None:
    def train_func() -> list[Any]:
        value: list[Any] = [1]
        value.append(value)
        return value

    [one, itself] = fit(train_func).return_value
    assert (one, itself[0]) == (1, 1)


def test_an_unknown_upload_mode_is_refused() -> None:
    def train_func() -> None:
        train.report({}, train.Checkpoint.from_dict({"a": 1}), checkpoint_upload_mode="sync")  # type: ignore[arg-type]

    with pytest.raises(train.TrainingFailedError, match="upload_mode must be SYNC, ASYNC or NO_UPLOAD, got 'sync'"):
        fit(train_func)
