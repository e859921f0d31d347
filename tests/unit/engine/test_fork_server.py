"""When the process that forks workers imports what the next ones will need."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest

import headway.data
from headway.engine import fork_server, fork_server_client


def made(monkeypatch: pytest.MonkeyPatch, **state: Any) -> fork_server.ForkServer:
    """One that has just imported, on a machine all of whose cores are busy."""
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
    ids=["nobody works", "workers without data", "data, nobody works", "workers with data", "they have had a second"],
)
def test_only_workers_with_data_are_left_their_cores(
    monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], may: bool
) -> None:
    assert made(monkeypatch, **state)._may_import() is may


def test_a_program_with_datasets_says_so() -> None:
    headway.data.range(1)
    assert "headway.data.iterator" in fork_server_client._also_warm, "so that fork servers are sparing"


def test_a_fork_server_whose_driver_was_killed_before_it_came_up_says_nothing() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    code = "import sys; from headway.engine.fork_server import main; main()"
    arguments = [sys.executable, "-c", code, json.dumps({"driver": ended.pid})]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
