"""Validation configs reject invalid values and suggest a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from headway import train


def validate(checkpoint: train.Checkpoint, split: str = "valid") -> dict[str, Any]:
    return {}


async def later(checkpoint: train.Checkpoint) -> None: ...


BAD: list[tuple[Any, str]] = [
    (lambda: train.ValidationConfig(None), "needs a function"),  # type: ignore[arg-type]
    (lambda: train.ValidationConfig({"accuracy": 1}), "did you call it?"),  # type: ignore[arg-type]
    (lambda: train.ValidationConfig(lambda: {"accuracy": 1}), "must take the checkpoint"),
    (lambda: train.ValidationConfig(later), "plain function"),  # type: ignore[arg-type]
    (lambda: train.ValidationConfig(validate, {"timeout_s": 3}), "task_config must be a ValidationTaskConfig"),  # type: ignore[arg-type]
    (lambda: train.ValidationConfig(validate, max_concurrent=0), "max_concurrent must be a positive number"),
    (lambda: train.ValidationConfig(validate, ray_remote_kwargs=3), "ray_remote_kwargs must be a dict"),  # type: ignore[arg-type]
    (
        lambda: train.ValidationConfig(validate, ray_remote_kwargs={"runtime_env": {"env_vars": {"A": 1}}}),
        "env_vars must be strings",
    ),
    (lambda: train.ValidationTaskConfig(timeout_s=0), "timeout_s must be None"),
    (lambda: train.ValidationTaskConfig(timeout_s=True), "timeout_s must be None"),
    (lambda: train.ValidationTaskConfig(fn_kwargs=["split"]), "fn_kwargs must be a dict"),  # type: ignore[arg-type]
    (lambda: train.ValidationTaskConfig(fn_kwargs={1: 2}), "fn_kwargs must be a dict"),  # type: ignore[dict-item]
    (lambda: train.ValidationTaskConfig(timeout=3), "did you mean 'timeout_s'"),  # type: ignore[call-arg]
    (
        lambda: train.DataParallelTrainer(lambda: None, validation_config=validate),  # type: ignore[arg-type]
        "validation_config must be a ValidationConfig",
    ),
]


@pytest.mark.parametrize(("make", "text"), BAD)
def test_invalid_values_are_refused_with_a_message(make: Any, text: str) -> None:
    with pytest.raises(train.ConfigError) as caught:
        make()
    assert text in str(caught.value)


def test_options_of_ray_are_accepted_if_they_have_a_meaning_here() -> None:
    given = {"num_gpus": 1, "runtime_env": {"env_vars": {"A": "1"}}}
    config = train.ValidationConfig(fn=validate, ray_remote_kwargs=given)
    assert config.env_vars == {"A": "1"}
    assert train.ValidationConfig(validate).env_vars == {}
