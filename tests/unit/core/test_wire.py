"""Messages are decoded from pieces of any size; invalid bytes are rejected."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.messages import (
    BarrierArrival,
    BarrierRelease,
    CheckpointCommitted,
    CheckpointInfo,
    CheckpointList,
    CheckpointQuery,
    ExitAllowed,
    FilesDiscarded,
    FunctionFailed,
    FunctionReturned,
    ProcessSetup,
    RankAssignment,
    Ready,
    Report,
    RunInfo,
    RunValidation,
    SaveStarted,
    Start,
    ValidationReturned,
)
from headway.core.task import WorkerOptions
from headway.core.wire import Frames, WireError, encode, encode_report

START = Start(
    rank=1,
    place=RankAssignment(rank=1, world_size=2, local_rank=1, local_world_size=2, gpus=(0,), visible_gpus=("3",)),
    run=RunInfo(id="a", name="b", path="/c", seed=7, attempt=2, num_workers=2, options=WorkerOptions(global_workers=4)),
    setup=ProcessSetup(env={"A": "1"}, cwd="/", sys_path=("",)),
    task=b"x" * 100_000,
)
MESSAGES: list[Any] = [
    Ready(host="here", pid=1),
    START,
    Report(seq=3, time=1.5, metrics=b'{"loss":1}', staged=True),
    Report(seq=4, time=2.5, metrics=b"{}", cursor=b"c" * (1 << 17)),
    BarrierArrival(index=0, kind="barrier()"),
    BarrierRelease(index=0, data=b"abc"),
    CheckpointCommitted(seq=1, path="/p"),
    FilesDiscarded(seq=1),
    FunctionReturned(value=b""),
    FunctionFailed(kind="E", message="m", traceback="t", error=None),
    ExitAllowed(),
    SaveStarted(),
    CheckpointQuery(index=1, after=3, validated=True),
    CheckpointList(index=1, found=(CheckpointInfo("/p", {"loss": 1}, "VALIDATED"),)),
    RunValidation(setup=START.setup, logs=("/o", "/e"), task=b"t", checkpoint="/p", kwargs={}, key=b"k"),
    ValidationReturned(metrics=b"{}"),
]


@given(st.lists(st.integers(0, len(MESSAGES) - 1), max_size=5), st.integers(1, 5000))
def test_messages_are_reassembled_from_pieces_of_any_size(chosen: list[int], size: int) -> None:
    messages = [MESSAGES[index] for index in chosen]
    data = b"".join(map(encode, messages))
    frames = Frames()
    found = [message for start in range(0, len(data), size) for message in frames.feed(data[start : start + size])]
    assert found == messages


@given(st.binary(min_size=5, max_size=200))
def test_garbage_is_never_decoded_as_a_message(data: bytes) -> None:
    with contextlib.suppress(WireError):
        assert Frames().feed(data) == [], "at most it waits for more"


def test_a_frame_with_a_wrong_body_is_garbage() -> None:
    good = encode(ExitAllowed())
    with pytest.raises(WireError):
        Frames().feed(good[:6] + b"\x00" * (len(good) - 6))
    with pytest.raises(WireError):
        Frames().feed(good[:1] + b"\xff" + good[2:])


def test_a_message_may_be_larger_than_4_gib() -> None:
    """The test writes only the header, whose length field has 64 bits."""
    header = struct.Struct("!BBQ")
    good = encode(ExitAllowed())
    assert header.unpack_from(good)[2] == len(good) - header.size
    assert Frames().feed(header.pack(*good[:2], 5 << 30) + b"x") == [], "it waits for the rest"


def test_frames_tell_whether_a_message_is_incomplete() -> None:
    frames, data = Frames(), encode_report(1, 0.0, b"x" * 1000, False, False)
    assert not frames.incomplete
    assert frames.feed(data[:500]) == []
    assert frames.incomplete
    assert len(frames.feed(data[500:])) == 1
    assert not frames.incomplete
