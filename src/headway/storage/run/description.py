"""``run.json``: the description of a run, with one entry for each time it was opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from headway.core.config import CheckpointConfig, FailureConfig, ScalingConfig
from headway.core.errors import ConfigError, StorageError
from headway.core.schema.record import FORMAT
from headway.core.schema.run_description import Opening, RunDescription
from headway.core.schema.shape import ShapeError, shown
from headway.storage.fs_ops import read_json
from headway.storage.run import layout

_LONGEST = 300  # maximum characters of an error message about a config


def read_description(run: Path) -> RunDescription:
    """The content of ``run.json``.

    Raises:
        FileNotFoundError: The file does not exist.
        StorageError: It is damaged, was written by a newer version, or does not describe a Headway run.
    """
    path = run / layout.DESCRIPTION
    content = read_json(path)
    if not isinstance(content, dict) or "format" not in content:
        raise StorageError(f"{path} does not describe a Headway run: choose another name")
    if content["format"] != FORMAT:
        written = shown(content["format"])
        raise StorageError(f"{run} was written in format {written}; this version reads {FORMAT}")
    try:
        return RunDescription.from_json(content)
    except ShapeError as error:
        raise StorageError(f"{path} is damaged: {error}") from None


Config = TypeVar("Config", CheckpointConfig, FailureConfig, ScalingConfig)


def checkpoint_config(run: Path, opening: Opening) -> CheckpointConfig:
    """The checkpoint config of this opening of a run."""
    return config_of(run, opening, "checkpoint_config", CheckpointConfig)


def config_of(run: Path, opening: Opening, name: str, kind: type[Config]) -> Config:
    """A config of this opening, as the user passed it.

    Args:
        run: The run's directory, for messages.
        opening: An entry of ``run.json``.
        name: The field of ``opening`` that holds the config.
        kind: The class of the config.

    Raises:
        StorageError: The config has unknown fields or invalid values.
    """
    given: Mapping[str, object] = getattr(opening, name)
    make: Callable[..., Config] = kind
    try:  # JSON has no tuples
        return make(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})
    except (ConfigError, TypeError) as error:
        text = str(error)
        brief = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        raise StorageError(f"{run / layout.DESCRIPTION} is damaged: {name}: {brief}") from None
