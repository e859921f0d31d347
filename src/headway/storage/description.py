"""``run.json``: what a run was asked for, with one entry per opening."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.core.config import CheckpointConfig
from headway.core.errors import ConfigError, StorageError
from headway.core.schema import NUMBER, ShapeError, Values, conform
from headway.storage import layout
from headway.storage.files import read_json

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
        raise StorageError(f"{run} was written in format {content['format']!r}; this version reads {layout.FORMAT}")
    try:
        conform(content, _DESCRIPTION)
    except ShapeError as error:
        raise StorageError(f"{path} is damaged: {error}") from None
    return content


def checkpoint_config(run: Path, opening: dict[str, Any]) -> CheckpointConfig:
    """Which checkpoints this opening of a run keeps."""
    try:
        return CheckpointConfig(**opening.get("checkpoint_config", {}))
    except (ConfigError, TypeError) as error:
        raise StorageError(f"{run / layout.DESCRIPTION} is damaged: checkpoint_config: {error}") from None
