"""Exits of workers that the fork server does not report, or that cause a new launch while they are delivered."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence

import pytest

from headway.core.config import ScalingConfig
from headway.core.messages import FromWorker, Ready, WorkerExited
from headway.engine import fork_server_client
from headway.engine.local import LocalEngine
from support import is_gone, wait_until


class Launches:
    """A local engine whose workers never get a Start, and what it delivered, by launch."""

    def __init__(self) -> None:
        self.engine = LocalEngine(ScalingConfig(num_workers=2))
        self.pids: dict[tuple[int, int], int] = {}
        self.exits: list[tuple[int, int]] = []
        self.codes: list[int | None] = []
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
                    self.codes.append(event.message.code)
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


@pytest.fixture
def stopped(launches: Launches) -> Iterator[int]:
    """The pid of the workers' fork server, which is stopped."""
    pid = fork_server_pid()
    os.kill(pid, signal.SIGSTOP)
    yield pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


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


def test_the_death_of_a_worker_is_reported_even_if_the_fork_server_is_stopped(launches: Launches, stopped: int) -> None:
    os.kill(launches.pids[1, 1], signal.SIGKILL)
    launches.pump_until(2, num_exits=1)
    assert (launches.exits, launches.codes) == ([(1, 1)], [-signal.SIGKILL])
    assert not is_gone(launches.pids[1, 0])


def test_an_exit_that_the_fork_server_reports_too_late_is_not_that_of_a_new_worker(
    launches: Launches, stopped: int
) -> None:
    launches.relaunch_at = 2
    launches.engine.kill()
    while len(launches.exits) < 2:
        launches.engine.pump(0.1)
    os.kill(stopped, signal.SIGCONT) if not is_gone(stopped) else None
    launches.pump_until(4)
    for _ in range(5):
        launches.engine.pump(0.02)
    assert sorted(launches.exits) == [(1, 0), (1, 1)]
    assert all(is_gone(launches.pids[1, index]) and not is_gone(launches.pids[2, index]) for index in (0, 1))


def test_a_stopped_fork_server_with_other_sessions_does_not_delay_the_exits_of_killed_workers(
    launches: Launches, stopped: int
) -> None:
    other = fork_server_client.ForkSession((), ())
    try:
        launches.engine.kill()
        launches.pump_until(2, num_exits=2)
        launches.engine.close()
        assert not is_gone(stopped), "it serves the other session"
    finally:
        other.close()
    assert is_gone(stopped)


def test_workers_of_a_fork_server_that_lost_a_reaper_keep_running(launches: Launches) -> None:
    server = fork_server_client.fork_server_for(())
    os.kill(server.reaper_pids[0], signal.SIGKILL)
    wait_until(lambda: not server.is_usable)
    later = fork_server_client.ForkSession((), ())
    try:
        for _ in range(5):
            launches.engine.pump(0.02)
        assert launches.exits == []
        assert not any(map(is_gone, launches.pids.values()))
    finally:
        later.close()
    launches.engine.close()
    wait_until(lambda: all(map(is_gone, launches.pids.values())))
