"""Exits of workers that the fork server does not report, or that cause a new launch while they are delivered."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence

import pytest
from support import is_gone

from headway.core.config import ScalingConfig
from headway.core.messages import FromWorker, Ready, WorkerExited
from headway.engine import fork_server_client
from headway.engine.local import LocalEngine


class Launches:
    """A local engine whose workers never get a Start, and what it delivered, by launch."""

    def __init__(self) -> None:
        self.engine = LocalEngine(ScalingConfig(num_workers=2))
        self.pids: dict[tuple[int, int], int] = {}
        self.exits: list[tuple[int, int]] = []
        self.reasons: list[str] = []
        self.relaunch_at: int | None = None  # the number of exits after which the workers are launched again
        self.engine.resources.request("test")
        self.engine.open(self._on_events)
        self.engine.launch(1, 2)
        self.pump_until(2)

    def _on_events(self, events: Sequence[object]) -> None:
        for event in events:
            if isinstance(event, FromWorker):
                worker = event.attempt, event.rank
                if isinstance(event.message, Ready):
                    self.pids[worker] = event.message.pid
                if isinstance(event.message, WorkerExited):
                    self.exits.append(worker)
                    self.reasons.append(event.message.reason)
                    if len(self.exits) == self.relaunch_at:
                        self.engine.launch(2, 2)

    def pump_until(self, num_ready: int, num_exits: int = 0) -> None:
        for _ in range(300):
            if len(self.pids) >= num_ready and len(self.exits) >= num_exits:
                return
            self.engine.pump(0.1)
        raise AssertionError(f"timed out: {self.pids}, {self.exits}")


@pytest.fixture
def launches() -> Iterator[Launches]:
    made = Launches()
    yield made
    made.engine.close()


def fork_server_pid() -> int:
    pid = fork_server_client.fork_server_for(()).pid
    assert pid is not None
    return pid


def test_workers_launched_while_exits_of_the_previous_launch_are_delivered_do_not_exit(launches: Launches) -> None:
    os.kill(launches.pids[1, 1], signal.SIGKILL)
    launches.pump_until(2, num_exits=1)
    launches.relaunch_at = 2
    os.kill(fork_server_pid(), signal.SIGKILL)
    launches.pump_until(4, num_exits=2)
    for _ in range(5):
        launches.engine.pump(0.02)
    assert launches.exits == [(1, 1), (1, 0)]
    assert not any(is_gone(launches.pids[2, index]) for index in (0, 1))
