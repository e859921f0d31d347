"""Validation records of checkpoints: the request to validate one, later the outcome.

The record is a file beside the manifest, which never changes. The commit writes the request with the checkpoint's
files, so that it survives a crash of the driver; the controller replaces it by the outcome.
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
    """A report's validation request as plain data for its note; ``key`` is the run's key."""
    config = config or ValidationTaskConfig()
    return {"kwargs": pack(config.fn_kwargs or {}, key), "timeout_s": config.timeout_s}


def pack(kwargs: Mapping[str, Any], key: Key) -> dict[str, Any]:
    """Keyword arguments as JSON if that preserves them, else as a signed pickle."""
    import cloudpickle

    plain = dict(kwargs)
    try:
        if json.loads(json.dumps(plain)) == plain:
            return {"json": plain}
    except (TypeError, ValueError):
        pass
    try:
        data = cloudpickle.dumps(plain)
    except Exception as error:  # a user's class can raise anything
        raise ConfigError(f"fn_kwargs cannot be sent to the validation function: {error}") from error
    return {"pickle": base64.b64encode(data).decode(), "signature": key.sign(_KWARGS, data)}


def unpack(kwargs: Mapping[str, Any], key: Key, *, trust: bool = False) -> dict[str, Any]:
    """Restore packed keyword arguments. StorageError if they are pickled and not signed by the run.

    Args:
        kwargs: The result of :func:`pack`.
        key: The run's key.
        trust: Open a pickle although it is not signed.
    """
    import cloudpickle

    if "pickle" not in kwargs:
        found: dict[str, Any] = kwargs.get("json", {})
        return found
    data = base64.b64decode(kwargs["pickle"])
    if not trust and not key.verify(_KWARGS, data, kwargs.get("signature")):
        raise StorageError(
            "its keyword arguments are pickled, and it is not proven that your own run wrote them: "
            "RunConfig(trust=True) if you know where they come from"
        )
    return dict(cloudpickle.loads(data))


def read_validation(folder: Path) -> ValidationRecord | None:
    """The record; None if there is no request. A damaged record counts as a failed validation of a good checkpoint."""
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
    """Write a validation request into a directory that will be a checkpoint; remove an older record."""
    remove_json(folder / layout.VALIDATION)
    if asked is None:
        return None
    validation = pending_record(asked)
    write_validation(folder, validation)
    return validation


def pending_record(asked: Mapping[str, Any]) -> ValidationRecord:
    """The record of a request in a note. StorageError if it was not made by :func:`validation_request`."""
    try:
        conform(asked, {"kwargs": _KWARGS_SHAPE, "timeout_s": _TIMEOUT})
        return ValidationRecord(**asked)
    except (ShapeError, TypeError) as error:
        raise StorageError(f"a note asks for a validation and is damaged: {error}") from error


def carry_over(known: Path, larger: Path, asked: Mapping[str, Any] | None) -> ValidationRecord | None:
    """Copy the validation record to the directory that will replace a checkpoint; else write the late rank's request.

    Args:
        known: The checkpoint.
        larger: The directory that will replace it.
        asked: The request of the late rank, if any.
    """
    before = read_validation(known)
    if before is None:
        return write_request(larger, asked)
    write_validation(larger, before)
    return before
