"""Shape checks for values from JSON files. They are checked once, so that all later code can trust them.

    RUN = {"format": int, "name": str, "created": NUMBER, "openings": [dict], "?note": str}

A dict lists the required keys; keys with a question mark may be missing, and other keys are ignored. A list contains
any number of values of its one shape; a tuple contains exactly one value of each of its shapes. A set lists
alternatives. ``Values`` is a dict with any keys. ``Range`` is a whole number within bounds, for numbers that are used
as loop limits or sizes. ``None`` is null; ``Nullable`` is null or a different shape. Values nested deeper than
``MAX_DEPTH`` are rejected, because printing or copying them would exhaust the stack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NUMBER = frozenset({int, float})
MAX_DEPTH = 150  # nested levels; metrics may have 100 levels, and a manifest adds a few

_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    None: "null",
}


@dataclass(frozen=True)
class Values:
    """A dict with any keys, and values of one shape."""

    shape: Any


@dataclass(frozen=True)
class Range:
    """A whole number between two bounds, inclusive."""

    least: int
    most: int


@dataclass(frozen=True)
class Nullable:
    """Null, or a value of the given shape."""

    shape: Any


COUNT = Range(0, 1_000_000)  # number of workers, ranks or files of a rank; a loop over more would look like a hang


class ShapeError(ValueError):
    """A value does not have the right shape; the message names the part."""


def conform(value: Any, shape: Any, name: str = "") -> None:
    """Raise ShapeError unless ``value``, which was decoded from JSON, has this shape.

    Args:
        value: The value that was read.
        shape: The required shape; see the module's docstring.
        name: The value's name in the error message.
    """
    if not name:
        check_depth(value)
    match shape:
        case dict():
            _conform_object(value, shape, name)
        case list():
            _require(isinstance(value, list), value, list, name)
            for index, item in enumerate(value):
                conform(item, shape[0], f"{name}[{index}]")
        case Values():
            _require(isinstance(value, dict), value, dict, name)
            for key, item in value.items():
                conform(item, shape.shape, f"{name}[{key!r}]")
        case Range():
            conform(value, int, name)
            if not shape.least <= value <= shape.most:
                raise ShapeError(f"{name or 'it'} must be between {shape.least} and {shape.most}, got {shown(value)}")
        case Nullable():
            if value is not None:
                conform(value, shape.shape, name)
        case frozenset() | set():
            _require(any(_conforms(value, each) for each in shape), value, shape, name)
        case tuple():
            _require(isinstance(value, list) and len(value) == len(shape), value, shape, name)
            for index, (item, expected) in enumerate(zip(value, shape, strict=True)):
                conform(item, expected, f"{name}[{index}]")
        case None:
            _require(value is None, value, None, name)
        case _:
            right = isinstance(value, shape) and (shape in (bool, object) or not isinstance(value, bool))
            _require(right and not _is_huge(value), value, shape, name)


def check_depth(value: Any) -> None:
    """Raise ShapeError if the value is nested deeper than ``MAX_DEPTH``."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if not level:
            return
    raise ShapeError(f"it is nested more than {MAX_DEPTH} levels deep")


def _conform_object(value: Any, shape: dict[str, Any], name: str) -> None:
    _require(isinstance(value, dict), value, dict, name)
    for key, expected in shape.items():
        plain = key.removeprefix("?")
        if plain in value:
            conform(value[plain], expected, f"{name}.{plain}" if name else plain)
        elif plain == key:
            raise ShapeError(f"{plain} is missing" + (f" in {name}" if name else ""))


def _conforms(value: Any, shape: Any) -> bool:
    try:
        conform(value, shape)
    except ShapeError:
        return False
    return True


def _require(right: bool, value: Any, shape: Any, name: str) -> None:
    if not right:
        raise ShapeError(f"{name or 'it'} must be {_named(shape)}, got {shown(value)}")


def _named(shape: Any) -> str:
    if isinstance(shape, frozenset | set):
        if shape == NUMBER:
            return "a number"
        return " or ".join(sorted(_named(each) for each in shape))
    if isinstance(shape, tuple):
        return f"a list of {len(shape)}"
    return _NAMES.get(shape, "something else")


def printable(text: str) -> str:
    """Text from a file, with escapes if some of its characters are not printable."""
    return text if text.isprintable() else ascii(text)


def _is_huge(value: Any) -> bool:
    """Whether the value is a whole number beyond the range of floats."""
    return isinstance(value, int) and value.bit_length() > 1000


def shown(value: Any) -> str:
    """A short text for a value from a file, safe to print."""
    if isinstance(value, dict | list):
        return _named(type(value))
    if isinstance(value, int) and value.bit_length() > 64:
        return "a huge number"  # its digits would take long to compute
    text = ascii(value)
    return "null" if value is None else text if len(text) <= 40 else f"{text[:40]}…"
