"""What all frameworks have in common: a config that travels to the workers and names the code that acts on it."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, cast

from headway.core.messages import RankAssignment


class Join(Protocol):
    """Makes this process a member of its group for as long as the context is open."""

    def __call__(
        self, config: Any, place: RankAssignment, rendezvous: str | None, *, lasting: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Join the group.

        Args:
            config: The backend config.
            place: This worker's ranks.
            rendezvous: A file in memory that all ranks can open; None where there is one rank or several nodes.
            lasting: Whether this process continues after the context, as the user's own program does: then what the
                group has changed is put back.
        """


@dataclass(frozen=True)
class BackendConfig:
    """How the workers of a run form a group; this one forms none.

    A framework derives its own config from it. Its class attributes name modules, so that nothing is imported before it
    is used: ``entry`` is a :class:`Join` as ``module:function``, ``preload`` are modules that workers find imported,
    ``warm`` are modules that are imported next, while there is time.
    """

    entry: ClassVar[str | None] = None
    preload: ClassVar[tuple[str, ...]] = ()
    warm: ClassVar[tuple[str, ...]] = ()

    def for_single_process(self) -> BackendConfig | Self:
        """The config for one rank of several that is run without the others, to replay it."""
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
