"""A rank's numbered requests to the controller, and the answers that it waits for."""

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
    """The pending requests of a rank; any thread may send one and wait for its answer.

    Requests with the same type of answer are numbered from 0. The n-th barrier is the same one on all ranks.
    """

    def __init__(self, connection: Connection, progress: RankProgress) -> None:
        self._connection = connection
        self._progress = progress
        self._lock = threading.Lock()
        self._numbers: dict[type[Answer], Iterator[int]] = defaultdict(itertools.count)
        self._answers: dict[tuple[type[Answer], int], Answer | None] = {}  # None: not answered yet

    def tell(self, message: ToController, *, wake: bool = True) -> None:
        """Send a message that needs no answer; ``wake=False``: the controller need not read it immediately."""
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
            request: Returns the request, given its number.
            operation: The operation in which the rank is waiting, as reported by the heartbeat.
            timeout_s: The time after which ``at_timeout`` is sent.
            at_timeout: Returns a request that replaces the first one, with the same number.
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
        """Wait until a message from the controller makes ``done()`` true; return False if the timeout passes first."""
        with self._progress.waiting(operation):
            return self._connection.wait(done, timeout_s)

    def on_answer(self, answer: Answer) -> None:
        key = type(answer), answer.index
        if key in self._answers:  # otherwise it answers a request that was already answered
            self._answers[key] = answer
