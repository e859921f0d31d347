"""The object that a line of code waits for, guessed from the names in it: a lock, a file, a sleep.

A C function has no frame, but the innermost line contains the name of the function that it called. The names in the
line are looked up without running user code, and objects that a thread can wait for are recognized by their type.
"""

from __future__ import annotations

import _io
import _thread
import builtins
import os
import queue
import re
import select
import socket
import threading
import time
from types import FrameType
from typing import Any

from headway.core.messages import Hint
from headway.diagnosis import source_lines
from headway.diagnosis.safe_inspection import NOTHING, attribute, is_a, local_variables, module_of

_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_MAX_CHARS = 1000  # longest part of a line that is searched

_LOCKS = (
    _thread.LockType,
    _thread.RLock,
    threading.Condition,
    threading.Semaphore,
    threading.Event,
    threading.Barrier,
    queue.Queue,
    queue.SimpleQueue,
)
_CALLS: dict[int, Hint] = {
    id(time.sleep): "sleep",
    id(builtins.open): "io",
    id(os.read): "io",
    id(os.write): "io",
    id(os.open): "io",
    id(os.fsync): "io",
    id(os.waitpid): "child",
    id(os.wait): "child",
    id(os.system): "child",
    id(select.select): "io",
}


def hint(frame: FrameType) -> Hint:
    """Return what the innermost line of this frame waits for; empty if that cannot be determined."""
    text = source_lines.line(frame.f_code.co_filename, frame.f_lineno or 0)[:_MAX_CHARS]
    found = [kind for name in _NAME.findall(text) for kind in _kinds(frame, name.split("."))]
    return found[-1] if found else ""


def _kinds(frame: FrameType, parts: list[str]) -> list[Hint]:
    """Return the kinds of the prefixes of a dotted name; in ``self.lock.acquire`` the second prefix is a lock."""
    thing: Any = _first(frame, parts[0])
    found = [_kind(thing)]
    for part in parts[1:]:
        if thing is NOTHING:
            break
        thing = attribute(thing, part)
        found.append(_kind(thing))
    return [kind for kind in found if kind]


def _first(frame: FrameType, name: str) -> Any:
    for names in (local_variables(frame), frame.f_globals, vars(builtins)):
        if dict.__contains__(names, name):
            return dict.__getitem__(names, name)
    return NOTHING


def _kind(thing: Any) -> Hint:
    if is_a(thing, *_LOCKS):
        return "lock"
    if is_a(thing, _io._IOBase, socket.socket) or module_of(type(thing)) == "multiprocessing.connection":
        return "io"
    return _CALLS.get(id(thing), "")
