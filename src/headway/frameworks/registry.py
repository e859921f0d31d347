"""The registry of framework adapters, which count collectives and track objects.

An adapter registers the names of its modules; a module is imported when it is used, and only if its framework is in
use.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

from headway.core.errors import ConfigError

SHIPPED = ("headway.frameworks.torch_config",)  # importing these modules registers Headway's adapters


class Tracking(Protocol):
    """A framework's support for ``train.track()``; a module can implement it."""

    def can_track(self, thing: object) -> bool:
        """Whether this is an object of the framework, such as a model or an optimizer."""

    def track(self, **things: Any) -> Any:
        """Restore the things, save them from now on, and return the result of ``train.track()``."""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """The names of an adapter's modules.

    Args:
        package: The framework's package. Its objects exist only in processes that imported it.
        adapter: The module with ``num_collectives() -> (in all groups, in the group of all ranks)``; empty if the
            adapter does not count collectives.
        tracking: A module that implements :class:`Tracking`; empty if the framework's objects cannot be tracked.
    """

    package: str
    adapter: str = ""
    tracking: str = ""


_registered: dict[str, Framework] = {}


def register(framework: Framework) -> None:
    """Add an adapter, replacing an earlier one for the same package."""
    _registered[framework.package] = framework


def registered() -> Iterator[Framework]:
    """Yield every adapter, Headway's first."""
    for name in SHIPPED:
        importlib.import_module(name)
    yield from list(_registered.values())


def num_collectives() -> tuple[int, int]:
    """Return how many collectives this process has begun, in all its groups and in the group of all ranks."""
    counts = [(0, 0)]
    for framework in list(_registered.values()):
        # The module may be incomplete, because a different thread is importing it.
        count = getattr(sys.modules.get(framework.adapter), "num_collectives", None)
        counts += [count()] if count is not None else []
    return sum(of_all for of_all, _ in counts), sum(of_world for _, of_world in counts)


def tracking_of(things: Collection[object]) -> Tracking:
    """Return the framework these things belong to; for things of no framework, one that is in use or else installed.

    Raises:
        ConfigError: If there is none.
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
