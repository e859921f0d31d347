"""Metrics become JSON text once, in the worker; what cannot be kept is refused here, with its key."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Any

from headway.core.errors import MetricsError


def encode_metrics(metrics: object) -> bytes:
    """The text that will stand in ``metrics.jsonl``."""
    if type(metrics) is not dict and not isinstance(metrics, Mapping):
        raise MetricsError(f"report() takes a dict of metrics, got {type(metrics).__name__}")
    if (text := _flat(metrics)) is not None:
        return text
    try:
        return _encode(metrics).encode()
    except (TypeError, ValueError):
        raise MetricsError(_complaint(metrics)) from None


def _flat(metrics: Mapping[Any, Any]) -> bytes | None:
    """The text of what is mostly reported, a flat dict of numbers under the same names as before; else None."""
    keys, values = tuple(metrics), tuple(metrics.values())
    for value in values:
        kind = type(value)
        if kind is not int and (kind is not float or not isfinite(value)):
            return None
    template = _templates.get(keys)
    if template is None:
        if not all(type(key) is str for key in keys) or len(_templates) > 1000:
            return None
        names = (encode_basestring_ascii(key).replace("%", "%%") for key in keys)
        template = _templates[keys] = f"{{{','.join(f'{name}:%r' for name in names)}}}"
    return (template % values).encode()


_templates: dict[tuple[Any, ...], str] = {}  # what a report looks like, by its keys: loops say the same thing each time


def refuse_tensors(value: object) -> None:
    """A return value with tensors in it would drag their memory, and perhaps a device, into the driver."""
    for path, item in _leaves(value, ""):
        if _is_torch(item):
            raise MetricsError(f"the training function returned a {_kind(item)}{_at(path)}: {_remedy(item)}")


def _plain(value: object) -> object:
    """NumPy numbers and arrays are plain data in another coat."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError


_encode = json.JSONEncoder(default=_plain, separators=(",", ":")).encode


def _complaint(metrics: Mapping[Any, Any]) -> str:
    for path, item in _leaves(metrics, ""):
        try:
            _encode(item)
        except (TypeError, ValueError):
            return f"metrics{_at(path)} is a {_kind(item)}: {_remedy(item)}"
    return "metrics must be numbers, strings, lists and dicts with string keys"


def _remedy(item: object) -> str:
    if not _is_torch(item):
        return "metrics must be numbers, strings, lists and dicts of them"
    if hasattr(item, "state_dict"):
        return "save it in a checkpoint"
    return "use .item() for a number, .cpu().numpy() for an array"


def _is_torch(item: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.Tensor | torch.nn.Module)


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}/{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}/{index}" if path else str(index))
    else:
        yield path, value


def _at(path: str) -> str:
    return f"[{path!r}]" if path else ""


def _kind(item: object) -> str:
    kind = type(item)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
