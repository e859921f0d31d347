"""Owners of run directories: a directory of another user is not used unless it is trusted."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from pathlib import Path

from headway.core.config import Resume
from headway.core.errors import StorageError

CHOOSE = "choose another name, or set RunConfig(trust=True) to continue it"


def own_directory(path: Path, resume: Resume, *, trust: bool) -> tuple[Path, list[str]]:
    """The directory to use for a run, and messages about it.

    A directory of another user is used only if trusted, because its owner can change its content at any time. In a
    world-writable directory (``/tmp``) another user may have taken the name: then the run gets another name, so that no
    user can block it.

    Args:
        path: The requested directory.
        resume: Whether a run may or must exist.
        trust: Use the directory although another user owns it.
    """
    if trust or not is_foreign(path):
        return path, []
    whose = user_name(os.lstat(path).st_uid)
    if resume == "auto" and os.stat(path.parent).st_mode & stat.S_IWOTH:
        ours = path.with_name(f"{path.name}-{user_name(os.geteuid())}")
        if not is_foreign(ours):
            text = f"{path} belongs to {whose} and is not used; this run is kept in {ours.name}"
            return ours, [f"{text} (RunConfig(trust=True) continues {path.name})"]
    raise StorageError(f"run {path} belongs to {whose}: {CHOOSE}")


def is_foreign(path: Path) -> bool:
    """Whether another user owns it. False on filesystems where even new files have another owner."""
    try:
        owner = os.lstat(path).st_uid
    except (FileNotFoundError, NotADirectoryError):
        return False
    if owner == os.geteuid():
        return False
    try:
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            return owner != os.fstat(probe.fileno()).st_uid
    except OSError:
        return True


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"
