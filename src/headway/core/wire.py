"""Messages as bytes on a stream: a frame is a mark, a length and a pickled (kind, fields) pair.

Pickle is for pipes between processes that we started ourselves; nothing of this is ever written to a file.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

from headway.core import messages
from headway.core.errors import HeadwayError

_HEADER = struct.Struct("!BI")
_MARK = 0x48
_KINDS: tuple[type[Any], ...] = (
    messages.Ready,
    messages.Report,
    messages.Arrive,
    messages.Finished,
    messages.Failed,
    messages.Start,
    messages.Committed,
    messages.Release,
    messages.Dismissed,
)
_NUMBER = {kind: number for number, kind in enumerate(_KINDS)}
_FIELDS: tuple[tuple[str, ...], ...] = tuple(kind.__slots__ for kind in _KINDS)


class WireError(HeadwayError):
    """These bytes are not a message of ours."""


def encode(message: object) -> bytes:
    """One frame, ready to be written."""
    number = _NUMBER[type(message)]
    body = pickle.dumps((number, [getattr(message, name) for name in _FIELDS[number]]), protocol=5)
    return _HEADER.pack(_MARK, len(body)) + body


def decode(body: bytes | bytearray | memoryview) -> Any:
    """The message of one frame's body."""
    try:
        number, values = pickle.loads(body)
        return _KINDS[number](**dict(zip(_FIELDS[number], values, strict=True)))
    except Exception as error:  # whatever garbage does inside pickle, it is garbage
        raise WireError(f"not a message: {error!r}") from error


class Frames:
    """Collects bytes as they come in and gives back whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The messages that these bytes complete."""
        self._buffer += data
        found, start, end = [], 0, len(self._buffer)
        with memoryview(self._buffer) as view:
            while end - start >= _HEADER.size:
                mark, size = _HEADER.unpack_from(view, start)
                if mark != _MARK:
                    raise WireError("the stream does not begin with a frame")
                stop = start + _HEADER.size + size
                if stop > end:
                    break
                with view[start + _HEADER.size : stop] as body:
                    found.append(decode(body))
                start = stop
        del self._buffer[:start]
        return found
