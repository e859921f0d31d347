"""The recorder keeps the stacks of an attempt until it fails."""

from __future__ import annotations

from pathlib import Path

from headway.control.narration.failure_recorder import FailureRecorder
from headway.core.messages import FunctionFailed, Heartbeat, StackDump
from headway.core.security.signing import Key


def test_the_activity_at_the_failure_is_kept_and_later_activity_ignored(tmp_path: Path) -> None:
    recorder = FailureRecorder(tmp_path, b"", Key(b"key"), print)
    recorder.on_message(1, FunctionFailed(kind="ValueError", message="bad", traceback="", stacks="raised here"))
    recorder.on_message(1, StackDump(index=-1, heartbeat=Heartbeat(), main=(), text="in an exit handler"))
    recorder.on_message(0, StackDump(index=-1, heartbeat=Heartbeat(), main=(), text="in backward"))
    assert recorder._stacks == {0: "in backward", 1: "raised here"}
