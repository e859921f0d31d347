"""How far this worker is, told now and then by a thread of its own; and what silence is to be expected.

Whoever gets on counts up a number here, which costs nothing. The thread looks at the numbers, and tells them to the
controller when they have changed, else once in a while: so that it knows us to be alive, and how our memory grows.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

from headway.core.messages import Heartbeat, RowsTaken
from headway.frameworks.registry import num_collectives
from headway.worker.connection import Connection
from headway.worker.critical_threads import start_vital_thread

EVERY_S = 0.5
AT_LEAST_EVERY_S = 2.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Progress:
    """Counted up by session, loaders and phases; read by the thread that tells it."""

    def __init__(self) -> None:
        self.batches = 0
        self.taken: dict[str, int] = {}
        self.meetings = 0
        self.in_loader = False
        self._phases: list[str] = []

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._phases.append(name)
        try:
            yield
        finally:
            self._phases.remove(name)

    def how_far(self) -> RowsTaken:
        """In the datasets that are split among the ranks."""
        return tuple(sorted(self.taken.copy().items()))

    def pulse(self) -> Heartbeat:
        collectives, common = num_collectives()
        return Heartbeat(
            batches=self.batches,
            taken=self.how_far(),
            collectives=collectives,
            common=common,
            meetings=self.meetings,
            phase=self._phases[-1] if self._phases else "",
            in_loader=self.in_loader,
            rss_bytes=_rss_bytes(),
        )


def _rss_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0


def beat(
    progress: Progress, link: Connection, over: Callable[[], bool], also: Callable[[], None] = lambda: None
) -> None:
    """Tell it from now on, in a thread, until ``over()``; ``also`` is called as often as we tell it at least."""

    def loop() -> None:
        last, told, also_told = None, 0.0, time.monotonic()
        while not over():
            pulse = progress.pulse()
            numbers = (pulse.batches, pulse.taken, pulse.collectives, pulse.meetings, pulse.phase)
            if numbers != last or time.monotonic() - told >= AT_LEAST_EVERY_S:
                last, told = numbers, time.monotonic()
                try:
                    link.send(pulse, ring=False)
                except ConnectionError:
                    return  # the controller is gone, and whoever started us ends us
            if time.monotonic() - also_told >= AT_LEAST_EVERY_S:
                also_told = time.monotonic()
                with contextlib.suppress(ConnectionError):
                    also()
            time.sleep(EVERY_S)

    start_vital_thread("pulse", loop, link.send)
