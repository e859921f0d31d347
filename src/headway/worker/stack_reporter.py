"""The reporter of this rank's stacks, collected on request by a separate thread.

Collecting stacks reads source files and inspects the user's objects. If that never ends, the connection still receives
messages, and the controller inspects the process from outside.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable

from headway.core.messages import Frame, Heartbeat, StackDump
from headway.diagnosis.stacks import all_threads, main_thread, phase
from headway.engine.process_stats import name_this_thread


class StackReporter:
    """The reporter, whose thread starts at the first request. Of several pending requests, it answers the last."""

    def __init__(self, heartbeat: Callable[[], Heartbeat], send: Callable[[StackDump], None]) -> None:
        self._heartbeat = heartbeat
        self._send = send
        self._requests: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def request(self, index: int) -> None:
        """Queue this request, to be answered soon; if no thread can be started, at a later request."""
        self._requests.put(index)
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="headway-observer", daemon=True)
            with contextlib.suppress(RuntimeError):  # too many threads; this must not end the calling thread
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """End the thread."""
        self._requests.put(None)

    def _work(self) -> None:
        name_this_thread("hw-observer")
        while (index := self._newest()) is not None:
            try:
                self._send(self._dump(index))
            except OSError:
                return  # the controller has exited

    def _newest(self) -> int | None:
        index = self._requests.get()
        while index is not None and not self._requests.empty():
            index = self._requests.get()
        return index

    def _dump(self, index: int) -> StackDump:
        main: tuple[Frame, ...] = ()
        text = doing = ""
        try:
            main, text, doing = main_thread(), all_threads(), phase()
        except Exception as error:  # from the user's objects; the main thread's calls matter most
            text = f"(the stacks could not be read: {type(error).__name__})\n"
        heartbeat = self._heartbeat()
        if (wait := heartbeat.wait) is not None:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(wait.since))
            awaited = "other ranks" if wait.is_for_ranks else "the run"
            text = f"waits for {awaited} ({wait.operation}) since {since} UTC\n\n{text}"
        return StackDump(index=index, heartbeat=heartbeat, main=main, text=text, phase=doing)
