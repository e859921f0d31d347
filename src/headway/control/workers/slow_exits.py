"""Slow exits: what keeps a worker running after its function returned, such as exit handlers or threads.

A process is killed if it does not exit within EXIT_S. After a few seconds the user is told which ranks have not exited
and what they are doing, and finally which ranks are killed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import PurePath

from headway.core import phrases
from headway.core.messages import StackDump, ToController

SLOW_EXIT_S = 5.0  # time before the user is told
QUESTION = -2  # index of the request for stacks, so that the watchdog ignores the answer
_THREAD = re.compile(r"^thread (.*):$", re.MULTILINE)


class SlowExits:
    """What the workers of one attempt were doing when their stacks were requested."""

    def __init__(self) -> None:
        self._doing: dict[int, str] = {}

    def begin(self) -> None:
        """Forget the previous attempt."""
        self._doing.clear()

    def heard(self, rank: int, message: ToController) -> str | None:
        """Return the log message for the answer to our request; None for other messages."""
        if not isinstance(message, StackDump) or message.index != QUESTION:
            return None
        self._doing[rank] = doing(message)
        return f"rank {rank} has returned, and {self._doing[rank]}"

    def killed(self, ranks: Collection[int], after_s: float, *, returned: bool) -> str:
        """Return the log message for ranks that are killed after their functions ``returned`` or were interrupted."""
        since = "its function returned" if returned else "it was interrupted"
        each = (
            f"rank {rank} was killed because its process was still running {phrases.duration(after_s)} after {since}"
            f"{': it ' + self._doing[rank] if rank in self._doing else ''}"
            for rank in sorted(ranks)
        )
        return "; ".join(each)


def doing(stacks: StackDump) -> str:
    """Describe what keeps a process from exiting."""
    calls = stacks.main
    if any(call.function == "_shutdown" and PurePath(call.file).name == "threading.py" for call in calls):
        return f"waits for {_threads(_THREAD.findall(stacks.text))} to end"
    if any(call.function == "_exit_function" and call.file.endswith("multiprocessing/util.py") for call in calls):
        return "waits for a process that the function started: join() it, or start it with daemon=True"
    calls = tuple(call for call in calls if call.file != "<string>") or calls  # the line that started this process
    users = [call for call in calls if call.users] or list(calls)
    where = f" in {users[-1].function}() ({PurePath(users[-1].file).name}:{users[-1].line})" if users else ""
    return f"runs exit handlers{where}"


def _threads(names: Iterable[str]) -> str:
    others = [name for name in names if name != "MainThread"]
    return f"its threads ({', '.join(others[:5])})" if others else "its threads"
