"""A fork server's decisions when to import modules, and its behaviour without a driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

import headway.data
from headway.engine import fork_server, fork_server_client
from support import is_gone, wait_until


def made(monkeypatch: pytest.MonkeyPatch, **state: Any) -> fork_server.ForkServer:
    """A fork server that has just imported a module, on a machine without an idle core."""
    monkeypatch.setattr(fork_server, "_some_core_is_idle", lambda: False)
    found = fork_server.ForkServer.__new__(fork_server.ForkServer)
    vars(found).update({"_workers": {}, "_sparing": False, "_imported_at": time.monotonic(), **state})
    return found


@pytest.mark.parametrize(
    ("state", "may"),
    [
        ({}, True),
        ({"_workers": {1: None}}, True),
        ({"_sparing": True}, True),
        ({"_workers": {1: None}, "_sparing": True}, False),
        ({"_workers": {1: None}, "_sparing": True, "_imported_at": 0.0}, True),
    ],
    ids=["no workers", "workers without data", "data, no workers", "workers with data", "after a second"],
)
def test_imports_wait_only_while_workers_use_datasets(
    monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], may: bool
) -> None:
    assert made(monkeypatch, **state)._may_import() is may


def test_fork_servers_spare_the_cores_of_programs_with_datasets() -> None:
    headway.data.range(1)
    assert "headway.data.iterator" in fork_server_client._also_warm, "so that fork servers are sparing"


def test_a_fork_server_without_a_driver_exits_silently() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    code = "import sys; from headway.engine.fork_server import main; main()"
    arguments = [sys.executable, "-c", code, json.dumps({"driver": ended.pid})]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("number", [0, 1], ids=["outer", "inner"])
def test_a_fork_server_with_a_stopped_reaper_can_be_ended(number: int) -> None:
    server = fork_server_client.ForkServerProcess((), ())
    wait_until(lambda: server.pid is not None)
    processes = [server.pid, *server.reaper_pids]
    os.kill(server.reaper_pids[number], signal.SIGSTOP)
    server.end()
    wait_until(lambda: all(pid is not None and is_gone(pid) for pid in processes))
    assert not server.directory.exists()
