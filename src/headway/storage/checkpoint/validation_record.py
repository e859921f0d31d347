"""Validation records beside checkpoints: the request to validate one, later the outcome.

It lies beside the manifest, which never changes. The commit lays the wish down with the checkpoint's files, so that
it survives whoever should have heard of it; the controller replaces it by what came of it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headway.core.checkpoints import ValidationRecord
from headway.core.errors import ConfigError, StorageError
from headway.core.schema.shape import ShapeError, conform
from headway.core.security.signing import Key
from headway.core.validation import ReportedCheckpointStatus, ValidationTaskConfig
from headway.storage.fs_ops import json_bytes, parse_json, read_small, remove_json, write_json
from headway.storage.run import layout

_KWARGS = "validation keywords"
_KWARGS_SHAPE = {"?json": dict, "?pickle": str, "?signature": str}
_TIMEOUT = frozenset({int, float, None})
_SHAPE = {
    "status": str,
    "?metrics": dict,
    "?error": str,
    "?kwargs": _KWARGS_SHAPE,
    "?timeout_s": _TIMEOUT,
    "?format": int,
}


def validation_request(config: ValidationTaskConfig | None, key: Key) -> dict[str, Any]:
    """What a report asks for, as plain data that a note can hold; ``key`` is that of the run."""
    config = config or ValidationTaskConfig()
    return {"kwargs": pack(config.fn_kwargs or {}, key), "timeout_s": config.timeout_s}


def pack(kwargs: Mapping[str, Any], key: Key) -> dict[str, Any]:
    """Keywords as JSON where that gives them back unchanged, else as a pickle, which only their own run opens."""
    import cloudpickle

    plain = dict(kwargs)
    try:
        if json.loads(json.dumps(plain)) == plain:
            return {"json": plain}
    except (TypeError, ValueError):
        pass
    try:
        data = cloudpickle.dumps(plain)
    except Exception as error:  # the user's own class: it may do anything here
        raise ConfigError(f"fn_kwargs cannot be sent to the validation function: {error}") from error
    return {"pickle": base64.b64encode(data).decode(), "signature": key.sign(_KWARGS, data)}


def unpack(kwargs: Mapping[str, Any], key: Key, *, trust: bool = False) -> dict[str, Any]:
    """The keywords again. StorageError where they are pickled, and not proven to be those that the run has packed."""
    import cloudpickle

    if "pickle" not in kwargs:
        found: dict[str, Any] = kwargs.get("json", {})
        return found
    data = base64.b64decode(kwargs["pickle"])
    if not trust and not key.verify(_KWARGS, data, kwargs.get("signature")):
        raise StorageError(
            "its keywords are pickled, and it is not proven that your own run wrote them: RunConfig(trust=True) if you "
            "know where they come from"
        )
    return dict(cloudpickle.loads(data))


def read_validation(folder: Path) -> ValidationRecord | None:
    """None where nobody has asked for one. One that cannot be read is a failed one: the checkpoint itself is good."""
    path = folder / layout.VALIDATION
    try:
        return parse_validation(path, read_small(path))
    except FileNotFoundError:
        return None
    except (OSError, StorageError) as error:
        return _unreadable(path, error)


def parse_validation(path: str | Path, data: bytes) -> ValidationRecord:
    try:
        content = parse_json(path, data)
        conform(content, _SHAPE)
        return ValidationRecord(**{**content, "status": ReportedCheckpointStatus(content["status"])})
    except (StorageError, ValueError, TypeError, KeyError) as error:
        return _unreadable(path, error)


def _unreadable(path: str | Path, error: Exception) -> ValidationRecord:
    return ValidationRecord(status=ReportedCheckpointStatus.VALIDATION_FAILED, error=f"{path} is damaged: {error}")


def write_validation(folder: Path, validation: ValidationRecord) -> None:
    write_json(folder / layout.VALIDATION, asdict(validation))


def validation_bytes(validation: ValidationRecord) -> bytes:
    return json_bytes(asdict(validation))


def write_request(folder: Path, asked: Mapping[str, Any] | None) -> ValidationRecord | None:
    """For a folder that is about to be a checkpoint: the wish, if there is one, and nothing of older times."""
    remove_json(folder / layout.VALIDATION)
    if asked is None:
        return None
    validation = pending_record(asked)
    write_validation(folder, validation)
    return validation


def pending_record(asked: Mapping[str, Any]) -> ValidationRecord:
    """What a note asks for. StorageError where it is not what :func:`validation_request` has written."""
    try:
        conform(asked, {"kwargs": _KWARGS_SHAPE, "timeout_s": _TIMEOUT})
        return ValidationRecord(**asked)
    except (ShapeError, TypeError) as error:
        raise StorageError(f"a note asks for a validation and is damaged: {error}") from error


def carry_over(known: Path, larger: Path, asked: Mapping[str, Any] | None) -> ValidationRecord | None:
    """For a folder that is about to replace a checkpoint: what is known of that one, else the wish of who came late."""
    before = read_validation(known)
    if before is None:
        return write_request(larger, asked)
    write_validation(larger, before)
    return before
