"""The import finder that makes ``import ray.train`` resolve to Headway, and modules that look up their names lazily.

A name that Headway does not have is refused with a one-sentence error wherever it is used: ``ray.train.foo``, ``from
ray.train import foo``, ``import ray.train.foo``.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from headway.compat.as_ray.name_map import LATER
from headway.compat.as_ray.ray_core import Core


class Face(ModuleType):
    """A module with a Ray name, each of whose names is a ``module:attribute`` of Headway, imported on first use."""

    def __init__(self, name: str, names: Mapping[str, str]) -> None:
        super().__init__(name, f"{name}, as implemented by Headway.")
        self.__path__: list[str] = []
        self.__all__ = sorted(names)
        self._names = names

    def __getattr__(self, name: str) -> Any:
        target = self._names.get(name)
        if target is None:
            raise AttributeError(missing(self.__name__, name, self._names))
        module, _, attribute = target.partition(":")
        value = importlib.import_module(module)
        if attribute:
            value = getattr(value, attribute)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._names})

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


class Shared(Face):
    """A module that Headway replaces only in part; for the rest, it is a placeholder until Ray is needed."""

    def __init__(self, name: str, names: Mapping[str, str], core: Core) -> None:
        super().__init__(name, names)
        self._core = core

    def __getattr__(self, name: str) -> Any:
        if name in self._names or name.startswith("__"):
            return super().__getattr__(name)
        try:
            self._core.become_real(f"{self.__name__}.{name}")
        except ModuleNotFoundError as error:
            raise AttributeError(str(error)) from None
        return getattr(importlib.import_module(self.__name__), name)


def missing(module: str, name: str, known: Mapping[str, str] = {}) -> str:
    """Return the error for a name that Headway does not have."""
    full = f"{module}.{name}"
    for prefix, what in LATER.items():
        if full == prefix or full.startswith(f"{prefix}."):
            return f"Headway has no {full} yet: {what}"
    near = difflib.get_close_matches(name, [each for each in known if not each.startswith("_")], 1, 0.8)
    names = "the page “parity” of Headway's documentation lists the supported names"
    hint = f"the nearest name is {module}.{near[0]}" if near else names
    return f"Headway has no {full}: {hint}"


class Finder(MetaPathFinder, Loader):
    """The import finder. ``faces`` are the modules that exist; below ``replaced``, there are no others."""

    def __init__(self, core: Core, faces: Mapping[str, Mapping[str, str]], replaced: tuple[str, ...]) -> None:
        self._core = core
        self._faces = faces
        self._replaced = replaced

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "ray" and not fullname.startswith("ray."):
            return None
        if fullname == "ray.util" and self._core._is_real:
            return None  # Headway replaces only ray.util.sgd
        if fullname == "ray" or fullname in self._faces:
            return ModuleSpec(fullname, self, is_package=True)
        parent, _, name = fullname.rpartition(".")
        if fullname in self._replaced or fullname.startswith(tuple(f"{each}." for each in self._replaced)):
            raise ImportError(missing(parent, name, self._faces.get(parent, {})), name=parent)
        self._core.become_real(f"import {fullname}")
        return PathFinder.find_spec(fullname, importlib.import_module(parent).__path__)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name == "ray":
            return self._core
        if spec.name == "ray.util":
            return Shared(spec.name, self._faces[spec.name], self._core)
        return Face(spec.name, self._faces[spec.name])

    def exec_module(self, module: ModuleType) -> None:
        pass
