"""The heartbeat, which reports a rank's progress to the controller from a separate thread, whatever the main one does.

Progress is counted by incrementing numbers, which costs nothing. The thread sends the numbers when they have changed,
and otherwise occasionally, so that the controller knows that the rank is alive and how its memory grows.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

from headway.core.messages import Heartbeat, RowsTaken, Wait, WaitOperation
from headway.frameworks.registry import num_collectives
from headway.worker.connection import Connection
from headway.worker.process.vital_threads import start_vital_thread

INTERVAL_S = 0.5
MAX_INTERVAL_S = 2.0  # if nothing has changed
_PAGE = os.sysconf("SC_PAGE_SIZE")


class RankProgress:
    """The counters of a rank's progress, updated by session, loaders and phases, and read by the sending thread."""

    def __init__(self) -> None:
        self.batches = 0
        self.taken: dict[str, int] = {}
        self.meetings = 0
        self.in_loader = False
        self._phases: list[str] = []
        self._wait: Wait | None = None

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark a phase in which silence is expected."""
        self._phases.append(name)
        try:
            yield
        finally:
            self._phases.remove(name)

    @contextlib.contextmanager
    def waiting(self, operation: WaitOperation) -> Iterator[None]:
        """Mark a wait of the main thread; waits of other threads say nothing about the rank and are ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before, self._wait = self._wait, Wait(operation=operation, since=time.time())
        try:
            yield
        finally:
            self._wait = before

    def rows_taken(self) -> RowsTaken:
        """Return the number of rows taken from each dataset that is split among the ranks."""
        return tuple(sorted(self.taken.copy().items()))

    def heartbeat(self) -> Heartbeat:
        """Return the current progress."""
        collectives, common = num_collectives()
        return Heartbeat(
            batches=self.batches,
            taken=self.rows_taken(),
            collectives=collectives,
            common=common,
            meetings=self.meetings,
            phase=self._phases[-1] if self._phases else "",
            in_loader=self.in_loader,
            wait=self._wait,
            rss_bytes=_rss_bytes(),
        )


def _rss_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0


def start_heartbeat(
    progress: RankProgress, connection: Connection, is_over: Callable[[], bool], send_stats: Callable[[], None]
) -> None:
    """Send heartbeats from a thread until the run has ended.

    Args:
        progress: The progress to send.
        connection: The connection to the controller.
        is_over: Returns whether the run has ended.
        send_stats: Called every ``MAX_INTERVAL_S``.
    """

    def loop() -> None:
        last, sent_at, stats_at = None, 0.0, time.monotonic()
        while not is_over():
            beat = progress.heartbeat()
            news = beat.batches, beat.taken, beat.collectives, beat.meetings, beat.phase, beat.wait
            try:
                if news != last or time.monotonic() - sent_at >= MAX_INTERVAL_S:
                    last, sent_at = news, time.monotonic()
                    connection.send(beat, wake=False)
                if time.monotonic() - stats_at >= MAX_INTERVAL_S:
                    stats_at = time.monotonic()
                    send_stats()
            except ConnectionError:
                return  # the controller has exited, and the engine ends this process
            time.sleep(INTERVAL_S)

    start_vital_thread("heartbeat", loop, connection.send)
