"""The title of a process, as shown by ``ps``, ``top`` and ``nvidia-smi``.

``ps`` shows the command line, which is stored on the stack of the process. It is overwritten in place, never beyond its
end. ``top`` shows a name of up to 15 bytes, set by prctl(2). If either is not possible (not on Linux, or a sandbox
without /proc), nothing happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

_PR_SET_NAME = 15
_NAME_BYTES = 15
_area: tuple[int, int] | None = None  # addresses of the command line in memory
_current = ""


def current() -> str:
    """The last title set in this process, or in the process that it was forked from; "" if none."""
    return _current


def set_title(title: str, name: str) -> None:
    """Set the title of this process.

    Args:
        title: A line for ``ps``; truncated to the length of the original command line.
        name: A short name for ``top``; truncated to 15 bytes.
    """
    global _current
    _current = _printable(title)
    with contextlib.suppress(
        OSError, ValueError, IndexError, AttributeError
    ):  # a title that cannot be set must not crash the process
        ctypes.CDLL(None).prctl(_PR_SET_NAME, _cut(_printable(name), _NAME_BYTES), 0, 0, 0)
        first, end = _command_line()
        size = end - first
        if size > 1:
            text = _cut(_current, size - 1)
            ctypes.memmove(first, text.ljust(size, b"\0"), size)


def _command_line() -> tuple[int, int]:
    """Start and end of the command line in memory; (0, 0) if writing there is not safe."""
    global _area
    if _area is None:
        _area = _found()
    return _area


def _found() -> tuple[int, int]:
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    first, end = int(fields[45]), int(fields[46])  # arg_start, arg_end: fields 48 and 49 of proc(5)
    with open("/proc/self/cmdline", "rb") as file:
        shown = file.read()
    if not first or end <= first or len(shown) != end - first or not _is_writable(first, end):
        return 0, 0
    return (first, end) if ctypes.string_at(first, end - first) == shown else (0, 0)


def _is_writable(first: int, end: int) -> bool:
    """Whether these addresses are in one readable and writable mapping of this process."""
    with open("/proc/self/maps") as file:
        for line in file:
            area, rights, *_ = line.split()
            low, high = (int(number, 16) for number in area.split("-"))
            if low <= first and end <= high:
                return rights.startswith("rw")
    return False


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def _cut(text: str, size: int) -> bytes:
    """The text as UTF-8, truncated between characters."""
    return text.encode(errors="replace")[:size].decode(errors="ignore").encode()


def worker_title(rank: int, num_workers: int, run: str, attempt: int) -> None:
    """Set the title of a worker process."""
    again = f", attempt {attempt}" if attempt > 1 else ""
    set_title(f"headway: rank {rank} of {num_workers}, run {run}{again}", f"r{rank}:{run}")


def of_driver(pid: int) -> str:
    """``process 17``, followed by the name of its program if known."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4096).decode(errors="replace").split("\0")
    except OSError:
        words = []
    script = next((os.path.basename(word) for word in words[1:] if word and not word.startswith("-")), "")
    return f"process {pid}{f' ({script[:60]})' if script else ''}"
