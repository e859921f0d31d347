"""Messages as bytes on a stream: a frame is a mark, a kind, a length and the fields.

Fields are pickled, which is for pipes between processes that we started ourselves; nothing of this is ever written
to a file. Reports, of which there may be thousands a second, have a fixed layout of their own.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

from headway.core import messages
from headway.core.errors import HeadwayError
from headway.core.messages import Report

_HEADER = struct.Struct("!BBQ")  # 64 bits: a function may carry gigabytes with it
_REPORT_FRAME = struct.Struct("!BBQqd??I")
_MARK = 0x48
_REPORT = 0
_KINDS: tuple[type[Any], ...] = (
    messages.Report,
    messages.Ready,
    messages.BarrierArrival,
    messages.FunctionReturned,
    messages.FunctionFailed,
    messages.Start,
    messages.CheckpointCommitted,
    messages.BarrierRelease,
    messages.ExitAllowed,
    messages.SaveStarted,
    messages.FilesStaged,
    messages.UploadRequest,
    messages.UploadGrant,
    messages.AutosaveEnabled,
    messages.NextReport,
    messages.RequestNextReport,
    messages.SaveAtReport,
    messages.CheckpointQuery,
    messages.CheckpointList,
    messages.RunValidation,
    messages.ValidationReturned,
    messages.Heartbeat,
    messages.RequestStacks,
    messages.StackDump,
    messages.PreemptionNotice,
    messages.PreemptionWarning,
    messages.BatchCount,
    messages.CommonBatchCount,
    messages.DataStats,
    messages.WorkerIdle,
    messages.FilesDiscarded,
)
_REPORT_FIELDS = struct.Struct("!qd??I")
_NUMBER = {kind: number for number, kind in enumerate(_KINDS)}
_FIELDS: tuple[tuple[str, ...], ...] = tuple(tuple(kind.__slots__) for kind in _KINDS)


class WireError(HeadwayError):
    """These bytes are not a message of ours."""


def encode(message: object) -> bytes:
    """One frame, ready to be written."""
    if type(message) is Report:
        return encode_report(*message)
    number = _NUMBER[type(message)]
    body = pickle.dumps([getattr(message, name) for name in _FIELDS[number]], protocol=5)
    return _HEADER.pack(_MARK, number, len(body)) + body


def encode_report(seq: int, time: float, metrics: bytes, staged: bool, pending: bool, cursor: bytes = b"") -> bytes:
    """The frame of a Report. A training loop waits for this one, its caches cold: one call, no object."""
    size = _REPORT_FIELDS.size + len(cursor) + len(metrics)
    return _REPORT_FRAME.pack(_MARK, _REPORT, size, seq, time, staged, pending, len(cursor)) + cursor + metrics


def decode(number: int, body: memoryview) -> Any:
    """The message of one frame."""
    try:
        if number == _REPORT:
            seq, time, staged, pending, length = _REPORT_FIELDS.unpack_from(body)
            begin = _REPORT_FIELDS.size + length
            return Report(seq, time, bytes(body[begin:]), staged, pending, bytes(body[begin - length : begin]))
        return _KINDS[number](**dict(zip(_FIELDS[number], pickle.loads(body), strict=True)))
    except Exception as error:  # whatever garbage does inside pickle, it is garbage
        raise WireError(f"not a message: {error!r}") from error


class Frames:
    """Collects bytes as they come in and gives back whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def incomplete(self) -> bool:
        """Whether the rest of a message is still to come."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[Any]:
        """The messages that these bytes complete."""
        self._buffer += data
        found, start, end = [], 0, len(self._buffer)
        with memoryview(self._buffer) as view:
            while end - start >= _HEADER.size:
                mark, number, size = _HEADER.unpack_from(view, start)
                if mark != _MARK:
                    raise WireError("the stream does not begin with a frame")
                stop = start + _HEADER.size + size
                if stop > end:
                    break
                with view[start + _HEADER.size : stop] as body:
                    found.append(decode(number, body))
                start = stop
        del self._buffer[:start]
        return found
