"""Metrics that older versions of Ray added to every report, counted per worker and attempt."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from headway.worker.session import current


@dataclass
class Iterations:
    """The counters of one worker. ``before``: the iterations of earlier attempts."""

    before: int = 0
    count: int = 0
    began: float = field(default_factory=time.time)
    last: float = field(default_factory=time.time)
    this_s: float = 0.0
    saves: int | None = None  # checkpoints so far, if they are counted
    next_id: int | None = None  # the ID of the next dict checkpoint, if they have IDs
    reported: Any = None  # this rank's newest checkpoint, if only rank 0's is kept

    def next(self) -> None:
        now = time.time()
        self.this_s, self.last = now - self.last, now
        self.count += 1

    @property
    def total(self) -> int:
        return self.before + self.count

    @property
    def since_s(self) -> float:
        return self.last - self.began


def iterations(caller: str) -> Iterations:
    """Return the counters of this worker."""
    session = current(caller)
    return session.helper(Iterations, lambda: Iterations(before=session.reports.next_seq))


def date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(seconds))


def details(count: Iterations) -> dict[str, Any]:
    """Return the metrics that describe where and when a report was made."""
    return {
        "date": date(count.last),
        "timestamp": int(count.last),
        "time_total_s": count.since_s,
        "pid": os.getpid(),
        "hostname": socket.gethostname(),
        "node_ip": "127.0.0.1",
    }
