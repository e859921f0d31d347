"""Inspection of objects of unknown classes without running their code.

``isinstance`` reads an object's ``__class__``, ``len`` and ``repr`` call its methods, and even the attributes of a
class may be properties of its metaclass. The functions in this module read only what the interpreter itself stores.
"""

from __future__ import annotations

import sys
from types import FrameType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

NOTHING = object()

_mro = type.__dict__["__mro__"].__get__
_namespace = type.__dict__["__dict__"].__get__
_module = type.__dict__["__module__"].__get__
_qualname = type.__dict__["__qualname__"].__get__


def is_a(value: object, *kinds: type) -> bool:
    """Like ``isinstance``, but without reading the object's ``__class__``."""
    return any(base is kind for base in _mro(type(value)) for kind in kinds)


def module_of(kind: type) -> str:
    """Return the module of a class; empty if it is unknown."""
    name = _module(kind)
    return name if type(name) is str else ""


def name_of(kind: type) -> str:
    """Return ``package.module.Class``."""
    module = module_of(kind)
    return f"{module}.{_qualname(kind)}" if module else _qualname(kind)


def attribute(thing: object, name: str) -> Any:
    """Return an attribute as it is stored, or NOTHING; properties are not called."""
    if type(found := _own_dict(thing)) is dict and name in found:
        return found[name]
    for kind in _mro(thing) if is_a(thing, type) else (), _mro(type(thing)):
        for base in kind:
            if (value := _namespace(base).get(name, NOTHING)) is not NOTHING:
                return _stored(value, thing)
    return NOTHING


def _own_dict(thing: object) -> Any:
    for base in _mro(type(thing)):
        descriptor = _namespace(base).get("__dict__", NOTHING)
        if descriptor is not NOTHING:
            return _stored(descriptor, thing) if not is_a(thing, type) else None
    return None


def _stored(value: Any, thing: object) -> Any:
    """Return the value in a slot, or any other value unchanged."""
    if type(value) in (MemberDescriptorType, GetSetDescriptorType):
        try:
            return value.__get__(thing)
        except Exception:  # the slot is empty, or the user's descriptor fails; the value is unknown
            return NOTHING
    return NOTHING if type(value) is property else value


def local_variables(frame: FrameType) -> dict[str, Any]:
    """Return a frame's local variables; for a class body or ``exec``, only if they are in a plain dict."""
    found = frame.f_locals
    return found if type(found) is dict else {}


def loaded(module: str, name: str) -> Any:
    """Return an attribute of a module; None if the module has not been imported."""
    found = sys.modules.get(module)
    return vars(found).get(name) if type(found) is ModuleType else None
