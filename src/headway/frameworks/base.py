"""The base of all framework adapters: a config that is sent to the workers and names the code that applies it."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, cast

from headway.core.messages import RankAssignment


class Join(Protocol):
    """A function whose context makes this process a member of its group."""

    def __call__(
        self, config: Any, place: RankAssignment, rendezvous: str | None, *, lasting: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Join the group.

        Args:
            config: The backend config.
            place: This worker's ranks.
            rendezvous: An in-memory file that all ranks can open; None if there is one rank or several nodes.
            lasting: Whether this process continues after the context, as the user's program does, so that everything
                the group changed must be restored.
        """


@dataclass(frozen=True)
class BackendConfig:
    """The config of how a run's workers form a group; this base class forms none.

    Each framework derives its config from it. The class attributes are names of modules, so that nothing is imported
    until it is used: ``entry`` is a :class:`Join` as ``module:function``, ``preload`` are modules that are imported
    before workers start, and ``warm`` are modules that are imported next, when there is time.
    """

    entry: ClassVar[str | None] = None
    preload: ClassVar[tuple[str, ...]] = ()
    warm: ClassVar[tuple[str, ...]] = ()

    def for_single_process(self) -> BackendConfig | Self:
        """Return the config for replaying one of several ranks without the others."""
        return self


def join(
    config: BackendConfig | None, place: RankAssignment, rendezvous: str | None, *, lasting: bool
) -> contextlib.AbstractContextManager[None]:
    """Join the group that the config describes, if it describes one."""
    if config is None or config.entry is None:
        return contextlib.nullcontext()
    module, _, name = config.entry.partition(":")
    entry = cast(Join, getattr(importlib.import_module(module), name))
    return entry(config, place, rendezvous, lasting=lasting)
