"""The frameworks that have an adapter: how many collectives they have begun, and which objects they can track.

An adapter registers itself with names of modules; a module is imported when it is used, and only where its framework
is in use.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

from headway.core.errors import ConfigError

SHIPPED = ("headway.frameworks.torch_config",)  # their import registers the adapters that come with Headway


class Tracking(Protocol):
    """What a framework offers to ``train.track()``; a module can be one."""

    def can_track(self, thing: object) -> bool:
        """Whether this is an object of the framework, such as a model or an optimizer."""

    def track(self, **things: Any) -> Any:
        """Restore the things, save them from now on, and return what ``train.track()`` returns."""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """An adapter, by the names of its modules.

    Args:
        package: The framework's own package. Objects of it exist only where it has been imported.
        adapter: The module with ``num_collectives() -> (of all groups, of the group of all ranks)``; empty: it counts
            none.
        tracking: A module that is a :class:`Tracking`; empty: nothing of this framework can be tracked.
    """

    package: str
    adapter: str = ""
    tracking: str = ""


_registered: dict[str, Framework] = {}


def register(framework: Framework) -> None:
    """Add an adapter; one for the same package is replaced."""
    _registered[framework.package] = framework


def registered() -> Iterator[Framework]:
    """Every adapter, those that come with Headway first."""
    for name in SHIPPED:
        importlib.import_module(name)
    yield from list(_registered.values())


def num_collectives() -> tuple[int, int]:
    """How many collective operations this process has begun: in all its groups, and in the one of all ranks."""
    counts = [(0, 0)]
    for framework in list(_registered.values()):
        # Another thread may be importing the module at this moment.
        count = getattr(sys.modules.get(framework.adapter), "num_collectives", None)
        counts += [count()] if count is not None else []
    return sum(of_all for of_all, _ in counts), sum(of_world for _, of_world in counts)


def tracking_of(things: Collection[object]) -> Tracking:
    """The framework that these things belong to; for things of none, any that is in use, or else installed.

    Raises:
        ConfigError: There is none.
    """
    able = [each for each in registered() if each.tracking]
    in_use = [_tracking(each) for each in able if each.package in sys.modules]
    for tracking in in_use:
        if any(map(tracking.can_track, things)):
            return tracking
    if in_use:
        return in_use[0]
    for framework in able:
        try:
            return _tracking(framework)
        except ModuleNotFoundError as error:
            if error.name != framework.package:
                raise
    raise ConfigError(f"train.track() needs a framework: install {' or '.join(each.package for each in able)}")


def _tracking(framework: Framework) -> Tracking:
    return cast(Tracking, importlib.import_module(framework.tracking))
