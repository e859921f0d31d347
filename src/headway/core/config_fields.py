"""Fields of config objects (dicts, dataclasses and others) as JSON.

The training function receives the user's own object. The JSON is for readers, and for ``restore()`` if it is complete.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
from collections.abc import Iterator, Mapping
from typing import Any

from headway.core.security.redaction import MASK, redact

MAX_DEPTH = 30
_MAX_INT = 10**300
_NEVER_CONFIGS = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)


def fields_of(config: Any) -> dict[str, Any] | None:
    """The fields of a config by name, or None if it has no fields. Fields with ``repr=False`` are masked.

    >>> fields_of(argparse.Namespace(lr=0.1)), fields_of([0.1])
    ({'lr': 0.1}, None)
    """
    if isinstance(config, Mapping):
        return {str(key): item for key, item in config.items()}
    if (found := _declared(config)) is not None:
        return found
    if isinstance(config, _NEVER_CONFIGS) or not hasattr(config, "__dict__"):
        return None
    return dict(vars(config))


def _declared(value: Any) -> dict[str, Any] | None:
    """The fields of an object whose class declares them, or of a namespace."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return {each.name: _shown(value, each.name, each.repr) for each in dataclasses.fields(kind)}
    if (attributes := getattr(kind, "__attrs_attrs__", None)) is not None:
        return {each.name: _shown(value, each.name, each.repr) for each in attributes}
    if isinstance(declared := getattr(kind, "model_fields", None), dict):  # a pydantic model
        extra = getattr(value, "model_extra", None) or {}
        return {**{name: _shown(value, name, getattr(each, "repr", True)) for name, each in declared.items()}, **extra}
    if issubclass(kind, tuple) and isinstance(names := getattr(kind, "_fields", None), tuple):
        return {name: getattr(value, name) for name in names}
    return dict(vars(value)) if issubclass(kind, _NAMESPACES) else None


def _shown(value: Any, name: str, visible: object) -> Any:
    return getattr(value, name, None) if visible else MASK


@dataclasses.dataclass(frozen=True)
class Description:
    """A config as JSON values; ``incomplete`` names fields that are stored only as text, or not at all."""

    content: Any
    incomplete: tuple[str, ...] = ()


def describe(value: Any) -> Description:
    """Describe a config as JSON with secrets masked. Never raises, whatever the user's objects do."""
    incomplete: list[str] = []
    try:
        content = _plain(value, "", incomplete, 0)
    except Exception:  # around user objects: a property or an items() that raises; recorded as incomplete
        content, incomplete = _text(value), [""]
    redacted = redact(content)
    return Description(redacted, (*incomplete, *_differences(content, redacted, "")))


def _plain(value: Any, path: str, incomplete: list[str], depth: int) -> Any:
    kind = type(value)
    if value is None or value is MASK or issubclass(kind, bool | float | str):
        return value
    if issubclass(kind, int) and -_MAX_INT < value < _MAX_INT:
        return value
    if depth <= MAX_DEPTH:
        if issubclass(kind, Mapping):
            return {str(key): _plain(item, _join(path, key), incomplete, depth + 1) for key, item in value.items()}
        found = fields_of(value) if depth == 0 else _declared(value)
        if found is not None:
            incomplete.append(path)
            return {key: _plain(item, _join(path, key), incomplete, depth + 1) for key, item in found.items()}
        if issubclass(kind, list | tuple):
            return [_plain(item, path, incomplete, depth + 1) for item in value]
    incomplete.append(path)
    return _text(value) if depth <= MAX_DEPTH else "…"


def _differences(before: Any, after: Any, path: str) -> Iterator[str]:
    """Names of fields that were masked."""
    if isinstance(before, dict):
        for key, item in before.items():
            yield from _differences(item, after[key], _join(path, key))
    elif before is not after and before != after:
        yield path


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _text(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # around the user's __repr__
        return f"<{type(value).__qualname__}>"
