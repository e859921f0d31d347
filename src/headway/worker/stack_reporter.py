"""The observer answers what this rank is doing, in a thread of its own.

Looking at stacks reads source files and walks over objects of the user's: should that take forever, the link still
listens, and the controller looks from outside.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from headway.core.messages import Frame, Heartbeat, StackDump
from headway.diagnosis.stacks import all_threads, main_thread, phase
from headway.engine.process_stats import name_this_thread


class Observer:
    """Its thread is started by the first question. A question that comes while it looks is the last one it answers."""

    def __init__(self, pulse: Callable[[], Heartbeat], send: Callable[[StackDump], None]) -> None:
        self._pulse = pulse
        self._send = send
        self._questions: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, index: int) -> None:
        """Have this question answered, if that can be."""
        self._questions.put(index)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="headway-observer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._questions.put(None)

    def _work(self) -> None:
        name_this_thread("hw-observer")
        while (index := self._newest()) is not None:
            try:
                self._send(self._looked(index))
            except OSError:
                return  # the controller is gone

    def _newest(self) -> int | None:
        index = self._questions.get()
        while index is not None and not self._questions.empty():
            index = self._questions.get()
        return index

    def _looked(self, index: int) -> StackDump:
        main: tuple[Frame, ...] = ()
        text = begins = ""
        try:
            main, text, begins = main_thread(), all_threads(), phase()
        except Exception as error:  # then it is not known: the main thread's calls are what counts
            text = f"(the stacks could not be told: {type(error).__name__})\n"
        return StackDump(index=index, pulse=self._pulse(), main=main, text=text, phase=begins)
