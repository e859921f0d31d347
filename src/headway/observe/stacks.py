"""What every thread of this process is doing: its calls with their locals, values cut short, secrets left out.

Nothing of the user's is called for it: no ``repr`` of their objects, no property, nothing that could wait for a device.
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

from headway.core.messages import Frame
from headway.core.redaction import is_secret, redact_arguments, redact_assignments
from headway.observe.hints import hint
from headway.observe.tracebacks import is_users

LONGEST = 80  # characters of a value
MOST_FRAMES = 60
MOST_LOCALS = 30
MOST_ITEMS = 4
MOST_TEXT = 1000  # characters that are searched for secrets
_WORKER = "headway/worker/main.py"


def main_thread() -> tuple[Frame, ...]:
    """The main thread's calls, the outermost first."""
    innermost = sys._current_frames().get(threading.main_thread().ident or 0)
    return tuple(_frame(each, leaf=each is innermost) for each in _calls(innermost))


def all_threads() -> str:
    """Every thread's calls with their locals; the main one first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: (item[0] != main, names.get(item[0], "~")))
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{_told([(each, each.f_lineno or 0) for each in _calls(frame)])}"
        for ident, frame in frames
        if not names.get(ident, "").startswith("headway-")
    )


def of_error(error: BaseException) -> str:
    """The calls that led to an exception, with their locals as they were then."""
    return f"{type(error).__qualname__} raised here:\n{_told(_traceback(error.__traceback__))}"


def _frame(frame: FrameType, *, leaf: bool) -> Frame:
    code = frame.f_code
    line = frame.f_lineno or code.co_firstlineno
    seen = hint(frame) if leaf else ""
    return Frame(code.co_filename, line, code.co_name, is_users(code.co_filename), seen)


def _calls(innermost: FrameType | None) -> list[FrameType]:
    found = []
    while innermost is not None:
        found.append(innermost)
        innermost = innermost.f_back
    return found[::-1]


def _traceback(link: TracebackType | None) -> list[tuple[FrameType, int]]:
    found = []
    while link is not None:
        found.append((link.tb_frame, link.tb_lineno))
        link = link.tb_next
    return found


def _told(frames: Sequence[tuple[FrameType, int]]) -> str:
    """From the user's first call on: what has led there is ours."""
    ours = [i for i, (frame, _) in enumerate(frames) if frame.f_code.co_filename.endswith(_WORKER)]
    first = ours[-1] + 1 if ours and ours[-1] + 1 < len(frames) else 0
    lines = []
    for frame, number in frames[first:][-MOST_FRAMES:]:
        code = frame.f_code
        text = linecache.getline(code.co_filename, number).strip()
        lines.append(f"  {code.co_filename}:{number}, in {code.co_name}\n      {redact_assignments(text)}")
        if is_users(code.co_filename):
            lines += [f"        {name} = {value}" for name, value in _locals(frame)]
    return "\n".join(lines) + "\n"


def _locals(frame: FrameType) -> Iterator[tuple[str, str]]:
    shown = [item for item in list(frame.f_locals.items()) if not _is_scenery(*item)]
    if frame.f_code.co_name == "<module>":
        return
    for name, value in shown[:MOST_LOCALS]:
        yield name, "(left out)" if is_secret(name) else described(value)


def _is_scenery(name: str, value: object) -> bool:
    return name.startswith("__") or isinstance(value, ModuleType | FunctionType | type)


def described(value: Any, depth: int = 0) -> str:
    """A value in a few words, by looking at what is known to be harmless to look at."""
    kind = type(value)
    if kind in (bool, int, float, complex, type(None)):
        return repr(value)[:LONGEST]
    if kind is str:
        return repr(_cut(redact_assignments(value[:MOST_TEXT])))
    if kind in (bytes, bytearray):
        return f"{kind.__name__} of {len(value)}"
    if shape := _shape(value):
        return shape
    if kind in (list, tuple, set, frozenset):
        shown = redact_arguments(list(value)[:MOST_ITEMS]) if depth < 2 else ()
        inside = ", ".join(described(item, depth + 1) for item in shown)
        return f"{kind.__name__} of {len(value)}: {inside}"[: LONGEST * 2]
    if kind is dict:
        return f"dict of {len(value)}: {_items(value, depth)}"[: LONGEST * 2]
    return f"<{kind.__module__}.{kind.__qualname__}>"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _items(value: Mapping[Any, Any], depth: int) -> str:
    if depth >= 2:
        return ""
    parts = []
    for key, item in list(value.items())[:MOST_ITEMS]:
        hidden = is_secret(key)
        parts.append(f"{described(key, 2)}: {'(left out)' if hidden else described(item, depth + 1)}")
    return ", ".join(parts)


def _shape(value: Any) -> str:
    """Of a tensor or an array: what it is like, not what is in it."""
    for base in type(value).__mro__:
        if (base.__module__, base.__qualname__) in (("torch", "Tensor"), ("numpy", "ndarray")):
            device = getattr(value, "device", None)
            where = f" on {device}" if base.__module__ == "torch" else ""
            return f"{type(value).__qualname__} {tuple(value.shape)} {value.dtype}{where}"
    return ""


_FAULTHANDLER_CALL = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')


def from_faulthandler(text: str) -> tuple[Frame, ...]:
    """The main thread's calls from what :mod:`faulthandler` has written; it names the innermost first."""
    threads = re.split(r"^(?:Current t|T)hread .*$", text, flags=re.MULTILINE)
    main = threads[-1] if threads else ""  # the oldest thread comes last
    found = [match for line in main.splitlines() if (match := _FAULTHANDLER_CALL.match(line))]
    return tuple(Frame(m["file"], int(m["line"]), m["function"], is_users(m["file"])) for m in reversed(found))
