"""The wire format of messages: a frame is a mark, a kind, a length and the fields.

Fields are pickled, because both ends are processes of one run and frames are never written to a file. Reports have a
separate, fixed layout, because there may be thousands per second.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, get_args

from headway.core.errors import HeadwayError
from headway.core.messages.to_controller import Report, SentByValidator, SentByWorker
from headway.core.messages.to_worker import ToValidator, ToWorker

_HEADER = struct.Struct("!BBQ")  # 64 bits for the length, because a pickled function may contain gigabytes
_REPORT_FRAME = struct.Struct("!BBQqd??I")
_MARK = 0x48
_REPORT = 0
_KINDS: tuple[type, ...] = tuple(
    dict.fromkeys([Report, *get_args(SentByWorker), *get_args(ToWorker), *get_args(SentByValidator), ToValidator])
)
_REPORT_FIELDS = struct.Struct("!qd??I")
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}  # Report is 0
_FIELDS: tuple[tuple[str, ...], ...] = tuple(tuple(getattr(kind, "__slots__", ())) for kind in _KINDS)


class WireError(HeadwayError):
    """These bytes are not a Headway message."""


def encode(message: object) -> bytes:
    """The frame of a message."""
    if type(message) is Report:
        return encode_report(*message)
    number = _NUMBERS[type(message)]
    body = pickle.dumps([getattr(message, name) for name in _FIELDS[number]], protocol=5)
    return _HEADER.pack(_MARK, number, len(body)) + body


def encode_report(seq: int, time: float, metrics: bytes, staged: bool, pending: bool, cursor: bytes = b"") -> bytes:
    """The frame of a Report, made without creating a Report because the training loop waits for this call."""
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
    except Exception as error:  # pickle may raise any exception for invalid bytes
        raise WireError(f"not a message: {error!r}") from error


class Frames:
    """Collects received bytes and returns complete messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def incomplete(self) -> bool:
        """Whether only a part of a message has been received."""
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
