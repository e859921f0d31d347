"""Encodes metrics as JSON text, once, in the worker, and refuses values that cannot be kept, stating their key."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Any

from headway.core.errors import MetricsError
from headway.storage.fs_ops import MAX_JSON_BYTES

MAX_DEPTH = 100  # the maximum nesting; JSON readers fail at about a thousand
MAX_BYTES = MAX_JSON_BYTES // 2  # the maximum size of a report: its line, or a manifest with it, must stay readable
_MAX_INT = 10**300  # larger integers do not fit into a float, so they could not be ranked or plotted
_LONGEST_KEY = 80  # the maximum length of a path in a message

_Parents = tuple[object, Any] | None  # the containers around a value, the innermost first: (container, its parents)


def encode_metrics(metrics: object) -> bytes:
    """Return the text that is written to ``metrics.jsonl``.

    Raises:
        MetricsError: If a value cannot be kept; the message states its key.
    """
    if type(metrics) is not dict and not isinstance(metrics, Mapping):
        raise MetricsError(f"report() takes a dict of metrics, got {type(metrics).__name__}")
    text = _flat(metrics)
    if text is None:
        _check(metrics)
        try:
            text = _encode(metrics).encode()
        except (TypeError, ValueError):
            raise MetricsError(_complaint(metrics)) from None
    if len(text) > MAX_BYTES:
        size, limit = len(text) >> 20, MAX_BYTES >> 20
        raise MetricsError(f"the metrics are {size} MiB of text, at most {limit} are kept: {_largest(metrics)}")
    return text


def _flat(metrics: Mapping[Any, Any]) -> bytes | None:
    """Return the text of the most frequent kind of metrics, a flat dict of numbers; None for any other kind."""
    keys, values = tuple(metrics), tuple(metrics.values())
    for value in values:
        kind = type(value)
        if kind is float:
            if not isfinite(value):
                return None
        elif kind is not int or not -_MAX_INT < value < _MAX_INT:
            return None
    template = _templates.get(keys)
    if template is None:
        if not all(type(key) is str for key in keys) or len(_templates) > 1000:
            return None
        names = (encode_basestring_ascii(key).replace("%", "%%") for key in keys)
        template = _templates[keys] = f"{{{','.join(f'{name}:%r' for name in names)}}}"
    return (template % values).encode()


_templates: dict[tuple[Any, ...], str] = {}  # report texts by their keys, which a loop repeats


def refuse_tensors(value: object) -> None:
    """Raise MetricsError if a return value contains tensors, which would need memory or a device in the driver."""
    for path, item in _leaves(value):
        if _is_torch(item):
            raise MetricsError(f"the training function returned a {_kind(item)}{_at(path)}: {_remedy(item)}")


def _check(metrics: Mapping[Any, Any]) -> None:
    """Refuse values that JSON would change, lose or fail at. Depth first, so infinite nesting ends at the limit."""
    waiting: list[tuple[str, Any, int, _Parents]] = [("", metrics, 1, None)]
    while waiting:
        path, value, depth, parents = waiting.pop()
        if depth > MAX_DEPTH:
            raise MetricsError(f"metrics{_at(path)} {_too_deep(value, parents)}")
        if isinstance(value, Mapping):
            _check_keys(value, path)
            items = value.items()
        elif isinstance(value, list | tuple):
            items = enumerate(value)  # type: ignore[assignment]
        else:
            continue
        inner = value, parents
        for key, item in items:
            kind = type(item)
            if kind is float or kind is str or kind is bool:
                continue
            if isinstance(item, int):
                if not -_MAX_INT < item < _MAX_INT:
                    raise MetricsError(f"metrics{_at(_join(path, key))} is too large an integer: report it as a string")
            elif isinstance(item, Mapping | list | tuple):
                waiting.append((_join(path, key), item, depth + 1, inner))
            elif kind.__module__ == "numpy" and getattr(getattr(item, "dtype", None), "hasobject", False):
                waiting.append((_join(path, key), item.tolist(), depth + 1, inner))


def _check_keys(value: Mapping[Any, Any], path: str) -> None:
    if all(type(key) is str for key in value):
        return
    texts: dict[str, object] = {}
    for key in value:
        if not (key is None or isinstance(key, str | int | float)):
            raise MetricsError(
                f"metrics{_at(path)} has the key {_shown(key)}, a {_kind(key)}: "
                "metrics must be numbers, strings, lists and dicts with string keys"
            )
        text = key if isinstance(key, str) else _encode(key)
        if text in texts:
            raise MetricsError(
                f"metrics{_at(path)} has the keys {texts[text]!r} and {key!r}, which are the same as text: "
                "metrics must be dicts with string keys"
            )
        texts[text] = key


def _too_deep(value: object, parents: _Parents) -> str:
    while parents is not None:
        container, parents = parents
        if container is value:
            return "contains itself: report a copy without the cycle"
    return f"is nested more than {MAX_DEPTH} deep: flatten it, or save it in a checkpoint"


def _largest(metrics: Mapping[Any, Any]) -> str:
    """Return the advice for metrics that are too large: to save the largest value in a checkpoint."""
    sizes = {str(key): len(_encode(value)) for key, value in metrics.items()}
    return f"save metrics{_at(max(sizes, key=sizes.__getitem__))} in a checkpoint"


def _plain(value: object) -> object:
    """Convert NumPy numbers and arrays, and mappings that are not dicts, to plain data."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


_encode = json.JSONEncoder(default=_plain, separators=(",", ":")).encode


def _complaint(metrics: Mapping[Any, Any]) -> str:
    for path, item in _leaves(metrics):
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


def _leaves(value: object) -> Iterator[tuple[str, object]]:
    """Yield values that are not containers, in order, with their paths; visit each container once, so cycles end."""
    waiting: list[tuple[str, object]] = [("", value)]
    seen: dict[int, object] = {}
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, Mapping):
            inner = [(_join(path, key), each) for key, each in item.items()]
        elif isinstance(item, list | tuple):
            inner = [(_join(path, index), each) for index, each in enumerate(item)]
        else:
            yield path, item
            continue
        if id(item) not in seen:
            seen[id(item)] = item
            waiting += reversed(inner)


def _join(path: str, key: object) -> str:
    """Return the path of an item; if the nesting is deep, only the beginning of the path is kept."""
    if path.endswith("…"):
        return path
    joined = f"{path}/{_shown(key)}" if path else _shown(key)
    return joined if len(joined) <= _LONGEST_KEY else joined[:_LONGEST_KEY] + "…"


def _shown(key: object) -> str:
    return key if isinstance(key, str) else repr(key)


def _at(path: str) -> str:
    return f"[{path!r}]" if path else ""


def _kind(item: object) -> str:
    kind = type(item)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
