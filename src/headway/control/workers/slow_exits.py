"""Slow exits: what keeps a worker whose function has returned, such as exit handlers or threads.

A process has EXIT_S to exit, then it is killed. After a few seconds the user is told which ranks have not exited, and
what they are doing; also which ranks are killed in the end.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import PurePath

from headway.core import phrases
from headway.core.messages import StackDump, ToController

SLOW_EXIT_S = 5.0  # before the user is told
QUESTION = -2  # the index of the request for stacks: its answer is not for the watchdog
_THREAD = re.compile(r"^thread (.*):$", re.MULTILINE)


class SlowExits:
    """What the workers of one attempt were doing when they were asked."""

    def __init__(self) -> None:
        self._doing: dict[int, str] = {}

    def begin(self) -> None:
        """Another attempt."""
        self._doing.clear()

    def heard(self, rank: int, message: ToController) -> str | None:
        """What to say of the answer to our request; None for other messages."""
        if not isinstance(message, StackDump) or message.index != QUESTION:
            return None
        self._doing[rank] = doing(message)
        return f"rank {rank} has returned, and {self._doing[rank]}"

    def killed(self, ranks: Collection[int], after_s: float, *, returned: bool) -> str:
        """What to say when these ranks are killed: their functions have ``returned``, or were interrupted."""
        since = "its function returned" if returned else "it was interrupted"
        each = (
            f"rank {rank} is killed: {phrases.duration(after_s)} after {since} its process is still running"
            f"{': it ' + self._doing[rank] if rank in self._doing else ''}"
            for rank in sorted(ranks)
        )
        return "; ".join(each)


def doing(stacks: StackDump) -> str:
    """What keeps a process from exiting, in words."""
    calls = stacks.main
    if any(call.function == "_shutdown" and PurePath(call.file).name == "threading.py" for call in calls):
        return f"waits for {_threads(_THREAD.findall(stacks.text))} to end"
    users = [call for call in calls if call.users] or list(calls)
    where = f" in {users[-1].function}() ({PurePath(users[-1].file).name}:{users[-1].line})" if users else ""
    return f"runs exit handlers{where}"


def _threads(names: Iterable[str]) -> str:
    others = [name for name in names if name != "MainThread"]
    return f"its threads ({', '.join(others[:5])})" if others else "its threads"
