"""Stack dumps of this process: the calls of every thread with their locals, shortened and without secrets.

A dump runs no user code: no ``repr`` of the user's objects, no property, not even ``isinstance``, and nothing that
could wait for a device. Describing an object takes the same short time, whatever its size.
"""

from __future__ import annotations

import itertools
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

from headway.core.messages import Frame
from headway.core.security.redaction import is_secret, redact_arguments, redact_assignments
from headway.diagnosis import source_lines
from headway.diagnosis.awaited_objects import hint
from headway.diagnosis.safe_inspection import is_a, loaded, local_variables, module_of, name_of
from headway.observe.tracebacks import is_users

MAX_VALUE_CHARS = 80
MAX_FRAMES = 60
MAX_LOCALS = 30
MAX_ITEMS = 4
MAX_SEARCHED_CHARS = 1000  # of a string that may contain secrets
MAX_BITS = 256  # larger integers are not shown in full
_WORKER = "headway/worker/main.py"


def main_thread() -> tuple[Frame, ...]:
    """Return the main thread's calls, outermost first."""
    innermost = sys._current_frames().get(threading.main_thread().ident or 0)
    return tuple(_frame(each, leaf=each is innermost) for each in _calls(innermost))


_STARTS = ("headway/data/execution/map_process.py", "_expect_ready")
STARTING = "starting processes that map rows"


def phase() -> str:
    """Return the long-running operation that a thread is executing; empty if there is none."""
    for innermost in sys._current_frames().values():
        for frame in _calls(innermost):
            if frame.f_code.co_name == _STARTS[1] and frame.f_code.co_filename.endswith(_STARTS[0]):
                return STARTING
    return ""


def all_threads() -> str:
    """Describe every thread's calls with their locals, main thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: (item[0] != main, names.get(item[0], "~")))
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{_as_text([(each, each.f_lineno or 0) for each in _calls(frame)])}"
        for ident, frame in frames
        if not names.get(ident, "").startswith("headway-")
    )


def of_error(error: BaseException) -> str:
    """Describe the calls that led to an exception, with their locals at that time."""
    return f"{type(error).__qualname__} raised here:\n{_as_text(_traceback(error.__traceback__))}"


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


def _as_text(frames: Sequence[tuple[FrameType, int]]) -> str:
    """Format the calls from the first user call on, without the Headway calls before it."""
    ours = [i for i, (frame, _) in enumerate(frames) if frame.f_code.co_filename.endswith(_WORKER)]
    first = ours[-1] + 1 if ours and ours[-1] + 1 < len(frames) else 0
    lines = []
    for frame, number in frames[first:][-MAX_FRAMES:]:
        code = frame.f_code
        text = source_lines.line(code.co_filename, number)[:MAX_SEARCHED_CHARS]
        lines.append(f"  {code.co_filename}:{number}, in {code.co_name}\n      {redact_assignments(text)}")
        if is_users(code.co_filename):
            lines += [f"        {name} = {value}" for name, value in _locals(frame)]
    return _encodable("\n".join(lines) + "\n")


def _encodable(text: str) -> str:
    """Escape lone surrogates, so that the string can be written to any file."""
    return text.encode(errors="backslashreplace").decode()


def _locals(frame: FrameType) -> Iterator[tuple[str, str]]:
    if frame.f_code.co_name == "<module>":
        return
    shown = [
        (name, value) for name, value in list(local_variables(frame).items()) if not _is_uninteresting(name, value)
    ]
    for name, value in shown[:MAX_LOCALS]:
        yield name, "(secret)" if is_secret(name) else described(value)


def _is_uninteresting(name: str, value: object) -> bool:
    return name.startswith("__") or is_a(value, ModuleType, FunctionType, type)


def described(value: Any, depth: int = 0) -> str:
    """Describe a value in a few words, without running its code."""
    try:
        return _described(value, depth)
    except Exception:  # another thread may change it in the meantime
        return f"<{name_of(type(value))}>"


def _described(value: Any, depth: int) -> str:
    kind = type(value)
    if kind is int and value.bit_length() > MAX_BITS:
        return f"int of {value.bit_length()} bits"
    if kind in (bool, int, float, complex, type(None)):
        return repr(value)[:MAX_VALUE_CHARS]
    if kind is str:
        return repr(_cut(redact_assignments(value[:MAX_SEARCHED_CHARS])))
    if kind in (bytes, bytearray):
        return f"{kind.__name__} of {len(value)} bytes"
    if shape := _shape(value):
        return shape
    if kind in (list, tuple, set, frozenset):
        inside = _listed(itertools.islice(value, MAX_ITEMS), depth) if depth < 2 else ""
        return f"{kind.__name__} of {len(value)} items: {inside}"[: MAX_VALUE_CHARS * 2]
    if kind is dict:
        return f"dict of {len(value)} items: {_items(value, depth)}"[: MAX_VALUE_CHARS * 2]
    return f"<{name_of(kind)}>"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"


@dataclass(frozen=True)
class _Opaque:
    """A wrapper that hides a value from the search for secrets."""

    value: Any


def _listed(items: Iterable[Any], depth: int) -> str:
    """Describe the items of a list as if they were a command line: the item after ``--token`` is omitted."""
    texts = [item[:MAX_SEARCHED_CHARS] if type(item) is str else _Opaque(item) for item in items]
    shown = (item.value if type(item) is _Opaque else item for item in redact_arguments(texts))
    return ", ".join(described(item, depth + 1) for item in shown)


def _items(value: dict[Any, Any], depth: int) -> str:
    if depth >= 2:
        return ""
    parts = []
    for key, item in itertools.islice(value.items(), MAX_ITEMS):
        hidden = type(key) is str and is_secret(key[:MAX_SEARCHED_CHARS])
        parts.append(f"{described(key, 2)}: {'(secret)' if hidden else described(item, depth + 1)}")
    return ", ".join(parts)


def _shape(value: Any) -> str:
    """Return the shape and type of a tensor or an array, but not of tensor subclasses, because they may run code."""
    kind = type(value)
    if module_of(kind).startswith("torch") and kind in (loaded("torch", "Tensor"), loaded("torch.nn", "Parameter")):
        return f"{kind.__qualname__} {tuple(value.shape)} {value.dtype} on {value.device}"
    array = loaded("numpy", "ndarray")
    if array is not None and is_a(value, array):
        shape, dtype = (vars(array)[name].__get__(value) for name in ("shape", "dtype"))
        return f"{name_of(kind).rpartition('.')[2]} {shape} {dtype}"[: MAX_VALUE_CHARS * 2]
    return ""


_FAULTHANDLER_CALL = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')


def from_faulthandler(text: str) -> tuple[Frame, ...]:
    """Parse the main thread's calls from a :mod:`faulthandler` dump, which lists the innermost call first."""
    threads = re.split(r"^(?:Current t|T)hread .*$", text, flags=re.MULTILINE)
    main = threads[-1] if threads else ""  # the oldest thread comes last
    found = [match for line in main.splitlines() if (match := _FAULTHANDLER_CALL.match(line))]
    return tuple(Frame(m["file"], int(m["line"]), m["function"], is_users(m["file"])) for m in reversed(found))
