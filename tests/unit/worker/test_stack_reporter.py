"""Stack dumps on request, including the operation that the rank waits for, and since when."""

from __future__ import annotations

import queue
import threading

import pytest

from headway.core.messages import Heartbeat, StackDump, Wait
from headway.worker.stack_reporter import StackReporter


@pytest.mark.parametrize(
    ("wait", "first_line"),
    [
        (None, "thread MainThread:"),
        (Wait(operation="barrier", since=0.0), "waits for other ranks (barrier) since 1970-01-01 00:00:00 UTC"),
        (Wait(operation="upload", since=60.0), "waits for the run (upload) since 1970-01-01 00:01:00 UTC"),
    ],
)
def test_a_dump_says_what_the_rank_waits_for(wait: Wait | None, first_line: str) -> None:
    dumps: queue.SimpleQueue[StackDump] = queue.SimpleQueue()
    reporter = StackReporter(lambda: Heartbeat(wait=wait), dumps.put)
    reporter.request(3)
    dump = dumps.get(timeout=30)
    reporter.close()
    assert dump.index == 3
    assert dump.heartbeat.wait == wait
    assert dump.text.splitlines()[0] == first_line
    assert "thread MainThread:" in dump.text
    assert any(frame.function == "test_a_dump_says_what_the_rank_waits_for" for frame in dump.main)


def test_a_request_that_cannot_start_a_thread_is_answered_with_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    dumps: queue.SimpleQueue[StackDump] = queue.SimpleQueue()
    reporter = StackReporter(Heartbeat, dumps.put)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        reporter.request(1)
    reporter.request(2)
    assert dumps.get(timeout=30).index == 2
    reporter.close()
