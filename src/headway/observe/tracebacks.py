"""Tracebacks for users: frames of their code in full, library frames folded, Headway's frames omitted."""

from __future__ import annotations

import itertools
import site
import sysconfig
import traceback
from pathlib import Path

import headway

_OURS = str(Path(headway.__file__).parent)
_LIBRARIES = tuple({*site.getsitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")})


def full(error: BaseException) -> str:
    """The traceback as Python prints it."""
    return "".join(traceback.format_exception(error))


def folded(error: BaseException) -> str:
    """The traceback with the user's frames in full, consecutive library frames as one line, and no Headway frames.

    Causes and contexts are kept. An error without a frame of the user's code is shown in full.
    """
    chain = _chain(error)
    if not any(is_users(frame.filename) for each in chain for frame in traceback.extract_tb(each.__traceback__)):
        return full(error)
    return "\n".join(_formatted(each) for each in reversed(chain))


def _formatted(error: BaseException) -> str:
    lines = "".join(_frames(error))
    return (f"Traceback (most recent call last):\n{lines}" if lines else "") + _message(error)


def is_users(filename: str) -> bool:
    """Whether this file is the user's own code, not Headway's or a library's."""
    return not filename.startswith(_OURS) and _library(filename) is None


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)
    return found


def _message(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error))


def _frames(error: BaseException) -> list[str]:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    lines = []
    for package, run in itertools.groupby(frames, key=lambda frame: _library(frame.filename)):
        run_frames = list(run)
        if package is None:
            lines += traceback.format_list(run_frames)
        else:
            shown = run_frames[-1]
            where = f"{Path(shown.filename).name}:{shown.lineno}, in {shown.name}"
            lines.append(f"  … {len(run_frames)} frame{'s' * (len(run_frames) > 1)} in {package}, last {where}\n")
    return lines


def _library(filename: str) -> str | None:
    """The package of a frame, or None for the user's own code."""
    for root in sorted(_LIBRARIES, key=len, reverse=True):
        if filename.startswith(root):
            return Path(filename).relative_to(root).parts[0].removesuffix(".py")
    return "python" if filename.startswith("<frozen") else None
