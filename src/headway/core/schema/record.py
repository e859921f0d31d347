"""Records: frozen dataclasses that are written to files as JSON objects and read back.

    @dataclass(frozen=True, kw_only=True)
    class RetryEntry(JournalEntry):
        attempt: Number
        cause: str
        seconds: float | None = None

The annotations are the schema: :func:`shape_of` turns them into a shape, which is checked when a record is read. Fields
with a default may be missing in a file. A field whose default is None is written only if it has another value. Fields
that a newer version has added are kept in ``unknown``, and written back.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self, TypeAlias, Union, get_args, get_origin, get_type_hints

from headway.core.schema.shape import COUNT, NUMBER, Nullable, Range, Values, conform

Count: TypeAlias = Annotated[int, COUNT]
Number: TypeAlias = Annotated[int, Range(-1, 1 << 62)]  # number of a report or an attempt

FORMAT = 1  # version of all contents of a run directory

_UNIONS = (types.UnionType, Union)
_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True, kw_only=True)
class Record:
    """A value that is stored as a JSON object; see the module's docstring."""

    unknown: Mapping[str, object] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The record as values for :func:`json.dumps`."""
        found = {name: getattr(self, name) for name in _layout(type(self)).decoders}
        optional = _layout(type(self)).optional
        plain = {name: _encoded(value) for name, value in found.items() if value is not None or name not in optional}
        return {**plain, **self.unknown} if self.unknown else plain

    @classmethod
    def from_json(cls, content: Any, name: str = "") -> Self:
        """Make a record from an object in a file.

        Args:
            content: The return value of :func:`json.loads`.
            name: Its name in error messages.

        Raises:
            ShapeError: If the object does not have the record's shape.
        """
        conform(content, shape_of(cls), name)
        return cls._decoded(content)

    @classmethod
    def _decoded(cls, content: Mapping[str, Any]) -> Self:
        decoders = _layout(cls).decoders
        fields = {name: decoders[name](value) for name, value in content.items() if name in decoders}
        unknown = {name: value for name, value in content.items() if name not in decoders}
        return cls(**fields, unknown=unknown)


def _encoded(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: _encoded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(item) for item in value]
    return value


Decoder = Callable[[Any], Any]


@dataclass(frozen=True)
class _Layout:
    """The information in a record's annotations."""

    shape: Mapping[str, Any]
    decoders: Mapping[str, Decoder]
    optional: frozenset[str]  # fields that are not written if they are None


_layouts: dict[type[Record], _Layout] = {}


def _layout(kind: type[Record]) -> _Layout:
    if kind not in _layouts:
        _layouts[kind] = _read_layout(kind)
    return _layouts[kind]


def _read_layout(kind: type[Record]) -> _Layout:
    hints = get_type_hints(kind, include_extras=True)
    fields = [each for each in dataclasses.fields(kind) if each.name != "unknown"]
    required = {
        each.name
        for each in fields
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    }
    return _Layout(
        {(each.name if each.name in required else f"?{each.name}"): _shape(hints[each.name]) for each in fields},
        {each.name: _decoder(hints[each.name]) for each in fields},
        frozenset(each.name for each in fields if each.default is None),
    )


def shape_of(kind: type[Record]) -> Mapping[str, Any]:
    """The shape of a record, for :func:`conform`."""
    return _layout(kind).shape


def _shape(hint: Any) -> Any:
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in _UNIONS:
        return Nullable(_shape(_of_nullable(arguments)))
    if kind is Annotated:
        return arguments[1]
    if kind is tuple:
        return [_shape(arguments[0])] if arguments[1:] == (...,) else tuple(map(_shape, arguments))
    if kind is dict:
        return dict if arguments[1] is object else Values(_shape(arguments[1]))
    if issubclass(kind, Record):
        return shape_of(kind)
    return NUMBER if kind is float else kind


def _decoder(hint: Any) -> Decoder:
    """Return a function that converts a JSON value to the value of a field."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in _UNIONS:
        inner = _decoder(_of_nullable(arguments))
        return lambda value: None if value is None else inner(value)
    if kind is tuple:
        inner = _decoder(arguments[0])
        return lambda value: tuple(map(inner, value))
    if kind is dict and arguments[1] is not object:
        inner = _decoder(arguments[1])
        return lambda value: {key: inner(item) for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, Record):
        return kind._decoded
    return _as_it_is


def _of_nullable(arguments: tuple[Any, ...]) -> Any:
    """Return ``X`` of ``X | None``, the only union that a field may have."""
    inner, none = arguments
    assert none is type(None)
    return inner


def _as_it_is(value: Any) -> Any:
    return value
