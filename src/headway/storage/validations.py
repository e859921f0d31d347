"""What is learnt of a checkpoint after its commit: the wish to validate it, and how that went.

It lies beside the manifest, which never changes. The commit lays the wish down with the checkpoint's files, so that
it survives whoever should have heard of it; the controller replaces it by what came of it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headway.core.errors import ConfigError, StorageError
from headway.core.validation import ReportedCheckpointStatus, ValidationTaskConfig
from headway.storage import disk, layout
from headway.storage.files import json_bytes, parse_json, write_json

PENDING = ReportedCheckpointStatus.PENDING_VALIDATION


@dataclass(frozen=True, kw_only=True)
class Validation:
    """``kwargs`` are packed; they and ``timeout_s`` are what the report asked for beyond the trainer's own."""

    status: ReportedCheckpointStatus = PENDING
    metrics: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    kwargs: dict[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None
    format: int = layout.FORMAT

    @property
    def pending(self) -> bool:
        return self.status is PENDING


def wish(config: ValidationTaskConfig | None = None) -> dict[str, Any]:
    """What a report asks for, as plain data that a note can hold."""
    config = config or ValidationTaskConfig()
    return {"kwargs": pack(config.fn_kwargs or {}), "timeout_s": config.timeout_s}


def pack(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as JSON where that gives them back unchanged, else as a pickle, which only their own run opens."""
    import cloudpickle

    plain = dict(kwargs)
    try:
        if json.loads(json.dumps(plain)) == plain:
            return {"json": plain}
    except (TypeError, ValueError):
        pass
    try:
        return {"pickle": base64.b64encode(cloudpickle.dumps(plain)).decode()}
    except Exception as error:  # the user's own class: it may do anything here
        raise ConfigError(f"fn_kwargs cannot be sent to the validation function: {error}") from error


def unpack(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    import cloudpickle

    found: dict[str, Any] = kwargs.get("json", {})
    return cloudpickle.loads(base64.b64decode(kwargs["pickle"])) if "pickle" in kwargs else found


def read_validation(folder: Path) -> Validation | None:
    """None where nobody has asked for one. One that cannot be read is a failed one: the checkpoint itself is good."""
    path = folder / layout.VALIDATION
    try:
        return parse_validation(path, path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        return _unreadable(path, error)


def parse_validation(path: str | Path, data: bytes) -> Validation:
    try:
        content = parse_json(path, data)
        return Validation(**{**content, "status": ReportedCheckpointStatus(content["status"])})
    except (StorageError, ValueError, TypeError, KeyError) as error:
        return _unreadable(path, error)


def _unreadable(path: str | Path, error: Exception) -> Validation:
    return Validation(status=ReportedCheckpointStatus.VALIDATION_FAILED, error=f"{path} is damaged: {error}")


def write_validation(folder: Path, validation: Validation) -> None:
    write_json(folder / layout.VALIDATION, asdict(validation))


def validation_bytes(validation: Validation) -> bytes:
    return json_bytes(asdict(validation))


def lay_down(folder: Path, asked: Mapping[str, Any] | None) -> Validation | None:
    """For a folder that is about to be a checkpoint: the wish, if there is one, and nothing of older times."""
    for stale in folder.glob(f"{layout.VALIDATION}*"):
        disk.remove(stale)
    if asked is None:
        return None
    validation = Validation(**asked)
    write_validation(folder, validation)
    return validation


def carry_over(known: Path, larger: Path, asked: Mapping[str, Any] | None) -> Validation | None:
    """For a folder that is about to replace a checkpoint: what is known of that one, else the wish of who came late."""
    before = read_validation(known)
    if before is None:
        return lay_down(larger, asked)
    write_validation(larger, before)
    return before
