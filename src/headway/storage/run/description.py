"""``run.json``: what a run was asked for, with one entry per opening."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from headway.core.config import CheckpointConfig, FailureConfig, ScalingConfig
from headway.core.errors import ConfigError, StorageError
from headway.core.schema.shape import NUMBER, ShapeError, Values, conform, shown
from headway.storage.fs_ops import read_json
from headway.storage.run import layout

_LONGEST = 300  # of what is wrong with a config, in characters
_OPENING = {
    "?time": NUMBER,
    "?function": str,
    "?trainer": str,
    "?code": frozenset({str, None}),
    "?train_loop_config": frozenset({dict, None}),
    "?train_loop_config_type": str,
    "?train_loop_config_incomplete": [str],
    "?scaling_config": dict,
    "?checkpoint_config": dict,
    "?failure_config": dict,
    "?datasets": dict,
    "?argv": [str],
    "?versions": Values(str),
}
_DESCRIPTION = {"id": str, "name": str, "seed": int, "created": NUMBER, "openings": [_OPENING]}


def read_description(run: Path) -> dict[str, Any]:
    """The content of ``run.json``.

    Raises:
        FileNotFoundError: There is none.
        StorageError: It is damaged, of a newer version, or not ours.
    """
    path = run / layout.DESCRIPTION
    content = read_json(path)
    if not isinstance(content, dict) or "format" not in content:
        raise StorageError(f"{path} is not of a run of ours: choose another name")
    if content["format"] != layout.FORMAT:
        written = shown(content["format"])
        raise StorageError(f"{run} was written in format {written}; this version reads {layout.FORMAT}")
    try:
        conform(content, _DESCRIPTION)
    except ShapeError as error:
        raise StorageError(f"{path} is damaged: {error}") from None
    return content


Config = TypeVar("Config", CheckpointConfig, FailureConfig, ScalingConfig)


def checkpoint_config(run: Path, opening: dict[str, Any]) -> CheckpointConfig:
    """Which checkpoints this opening of a run keeps."""
    return config_of(run, opening, "checkpoint_config", CheckpointConfig)


def config_of(run: Path, opening: dict[str, Any], name: str, kind: type[Config]) -> Config:
    """A config of this opening, as it was given.

    Args:
        run: The run's directory, for messages.
        opening: An entry of ``run.json``.
        name: Of the config in there.
        kind: The class of the config.

    Raises:
        StorageError: There are fields that no such config has, or with values that it refuses.
    """
    given: dict[str, Any] = opening.get(name, {})
    make: Callable[..., Config] = kind
    try:  # JSON has no tuples
        return make(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})
    except (ConfigError, TypeError) as error:
        text = str(error)
        brief = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        raise StorageError(f"{run / layout.DESCRIPTION} is damaged: {name}: {brief}") from None
