"""Metrics that older generations of Ray filled into every report, counted per worker and attempt."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from headway.worker.session import current


@dataclass
class Iterations:
    """``before``: iterations of former attempts."""

    before: int = 0
    count: int = 0
    began: float = field(default_factory=time.time)
    last: float = field(default_factory=time.time)
    this_s: float = 0.0
    saves: int | None = None  # checkpoints so far, where they are counted
    next_id: int | None = None  # of the next dict checkpoint, where they have one
    reported: Any = None  # the newest one of this rank, where only that of rank 0 is kept

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
    """The metrics of this worker."""
    session = current(caller)
    return session.helper(Iterations, lambda: Iterations(before=session.reports.next_seq))


def date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(seconds))


def details(count: Iterations) -> dict[str, Any]:
    """Host, process and time."""
    return {
        "date": date(count.last),
        "timestamp": int(count.last),
        "time_total_s": count.since_s,
        "pid": os.getpid(),
        "hostname": socket.gethostname(),
        "node_ip": "127.0.0.1",
    }
