"""The description of a request in ``run.json``: what was requested, as far as JSON can hold it, without secrets."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from importlib import metadata
from typing import Any

import headway
from headway.core.config_fields import describe
from headway.core.schema.run_description import Opening
from headway.core.security.redaction import redact, redact_arguments
from headway.train import datasets
from headway.train.launch.request import TrainRequest


def opening_of(request: TrainRequest, feeds: Mapping[str, datasets.Feed]) -> Opening:
    """Return the entry of this opening of the run; ``feeds`` are its datasets."""
    versions = {"python": platform.python_version(), "headway": headway.__version__}
    with contextlib.suppress(metadata.PackageNotFoundError):
        versions["torch"] = metadata.version("torch")
    described = {
        "trainer": request.kind,
        "function": _name(request.task.call),
        "code": _fingerprint(request.task.call),
        **_described(request.train_loop_config),
        "scaling_config": _plain(asdict(request.scaling)),
        "checkpoint_config": asdict(request.run.checkpoint_config),
        "failure_config": asdict(request.run.failure_config),
        **({"datasets": {name: each.to_json() for name, each in datasets.described(feeds).items()}} if feeds else {}),
        "argv": list(sys.argv),
        "versions": versions,
    }
    return Opening.from_json(redact(described))


def _name(function: Any) -> str:
    """Return the name of a function, such as ``train_func``; for a script, the script and its arguments."""
    if isinstance(function, functools.partial):
        parts = [str(part) for arg in function.args for part in (arg if isinstance(arg, list) else [arg])]
        given = " ".join(redact_arguments(parts))
        return f"{_name(function.func)} {given}".strip()
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _fingerprint(function: Any) -> str | None:
    """Return a digest of the function's source; None if there is no source."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError):
        return None


def _described(config: object) -> dict[str, Any]:
    """Describe the config for people, and the fields that ``restore()`` cannot take from the description."""
    if config is None:
        return {"train_loop_config": None}
    described = describe(config)
    content = described.content if isinstance(described.content, dict) else {"config": described.content}
    kind = None if isinstance(config, Mapping) else f"{type(config).__module__}.{type(config).__qualname__}"
    return {
        "train_loop_config": content,
        **({"train_loop_config_type": kind} if kind else {}),
        **({"train_loop_config_incomplete": list(described.incomplete)} if described.incomplete else {}),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
