"""Requests of a rank to the controller: numbered, with the answers that it waits for."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from headway.core.errors import EngineError
from headway.core.messages import BarrierRelease, CheckpointList, ToController, UploadGrant, WaitOperation
from headway.worker.connection import Connection
from headway.worker.heartbeat import RankProgress
from headway.worker.process.interrupt_guard import raise_pending_interrupt

Answer = BarrierRelease | CheckpointList | UploadGrant
A = TypeVar("A", BarrierRelease, CheckpointList, UploadGrant)


class PendingRequests:
    """Sends requests and waits for their answers; any thread may call it.

    Requests that have the same type of answer are numbered from 0. The n-th barrier is the same one on all ranks.
    """

    def __init__(self, connection: Connection, progress: RankProgress) -> None:
        self._connection = connection
        self._progress = progress
        self._lock = threading.Lock()
        self._numbers: dict[type[Answer], Iterator[int]] = defaultdict(itertools.count)
        self._answers: dict[tuple[type[Answer], int], Answer | None] = {}  # None: not answered yet

    def tell(self, message: ToController, *, wake: bool = True) -> None:
        """Send a message that needs no answer; ``wake=False``: the controller need not read it at once."""
        self._connection.send(message, wake=wake)
        raise_pending_interrupt()

    def ask(
        self,
        answer: type[A],
        request: Callable[[int], ToController],
        operation: WaitOperation,
        *,
        timeout_s: float | None = None,
        at_timeout: Callable[[int], ToController] | None = None,
    ) -> A:
        """Send a request and wait for its answer.

        Args:
            answer: The type of the answer.
            request: Makes the request, given its number.
            operation: What the heartbeat says the rank waits in.
            timeout_s: After this time ``at_timeout`` is sent.
            at_timeout: Makes a request that replaces the first one, under the same number.
        """
        with self._lock:
            key = answer, next(self._numbers[answer])
            self._answers[key] = None
        try:
            self.tell(request(key[1]))
            if not self.wait(operation, lambda: self._answers[key] is not None, timeout_s) and at_timeout is not None:
                self.tell(at_timeout(key[1]))
                self.wait(operation, lambda: self._answers[key] is not None)
        finally:
            found = self._answers.pop(key)
        if found is None:
            raise EngineError(f"the controller did not answer a request ({operation})")
        return cast(A, found)

    def wait(self, operation: WaitOperation, done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until a message from the controller makes ``done()`` true; False when the timeout passes first."""
        with self._progress.waiting(operation):
            return self._connection.wait(done, timeout_s)

    def on_answer(self, answer: Answer) -> None:
        key = type(answer), answer.index
        if key in self._answers:  # else it was sent before a replaced request was
            self._answers[key] = answer
