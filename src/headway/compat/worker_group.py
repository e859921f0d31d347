"""The worker group: an object on every worker whose methods the driver calls, for code without a training loop.

    driver                                  worker
      listens on a separate socket    ◀──── connects, creates the object, sends its rank
      (call number, method, args) ────────▶ calls it
      future.set_result ◀────────────────── (call number, value or exception)

The socket is in a private directory of this user, and a client must know a key that only the workers receive.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, NoReturn

import cloudpickle

from headway.core.callback import TrainRunContext, UserCallback
from headway.core.errors import TrainingFailedError, WorkerDied
from headway.core.process.temp_directories import OwnedDirectory
from headway.train.functions import get_context, phase
from headway.train.run_handle import Run

HANG_UP = b""
DOOR = "door"


class Service:
    """The function that runs on a worker: it creates the object and answers calls until the driver hangs up."""

    def __init__(self, address: str, key: bytes, kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._address = address
        self._key = key
        self._kind = kind
        self._args = args
        self._kwargs = kwargs

    def __call__(self) -> None:
        with Client(self._address, authkey=self._key) as connection:
            made = self._kind(*self._args, **self._kwargs)
            connection.send(get_context().get_world_rank())
            while True:
                with phase("waiting for a call"):
                    asked = connection.recv_bytes()
                if asked == HANG_UP:
                    return
                number, method, args, kwargs = cloudpickle.loads(asked)
                connection.send_bytes(_answer(number, made, method, args, kwargs))


def _answer(number: int, made: object, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    try:
        return _packed(number, True, getattr(made, method)(*args, **kwargs))
    except Exception as error:  # the user's method may raise anything; the caller receives it
        return _packed(number, False, error)


def _packed(number: int, fine: bool, value: object) -> bytes:
    try:
        data: bytes = cloudpickle.dumps((number, fine, value))
    except Exception as error:
        data = cloudpickle.dumps(
            (number, False, TypeError(f"the return value cannot be sent back: {value!r} ({error})"))
        )
    return data


class Member:
    """The object on one worker: ``member.method.remote(...)`` returns a future immediately."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._connection: Connection | None = None
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._left = False

    def __getattr__(self, name: str) -> Method:
        if name.startswith("__"):
            raise AttributeError(name)
        return Method(self, name)

    def _call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._left or self._connection is None:
                future.set_exception(WorkerDied(f"worker {self._rank} has exited"))
                return future
            number = next(self._numbers)
            self._waiting[number] = future
            self._connection.send_bytes(cloudpickle.dumps((number, method, args, kwargs)))
        return future

    def _listen(self) -> None:
        assert self._connection is not None
        try:
            while True:
                number, fine, value = cloudpickle.loads(self._connection.recv_bytes())
                future = self._waiting.pop(number)
                future.set_result(value) if fine else future.set_exception(value)
        except (EOFError, OSError):
            self._leave()

    def _hang_up(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._connection is not None and not self._left:
                self._left = True
                self._connection.send_bytes(HANG_UP)

    def _leave(self) -> None:
        with self._lock:
            self._left = True
            for future in self._waiting.values():
                future.set_exception(WorkerDied(f"worker {self._rank} exited before it answered"))
            self._waiting.clear()


class Method:
    def __init__(self, member: Member, name: str) -> None:
        self._member = member
        self._name = name

    def remote(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the method on the worker; the future's ``.result()`` waits for the answer."""
        return self._member._call(self._name, args, kwargs)


class Crew(UserCallback):
    """The objects of all workers, by rank. It is also a callback, which is notified of the end of its run."""

    def __init__(self, kind: type, args: tuple[Any, ...], kwargs: dict[str, Any], *, num_workers: int) -> None:
        self._directory = OwnedDirectory("crew")
        key = secrets.token_bytes(32)
        self._listener = Listener(f"{self._directory.path}/{DOOR}", family="AF_UNIX", backlog=num_workers, authkey=key)
        self.function = Service(str(self._listener.address), key, kind, args, kwargs)
        self._members = [Member(rank) for rank in range(num_workers)]
        self._run: Run | None = None
        self._over: Callable[[], None] | None = None

    def serve(self, run: Run, over: Callable[[], None] | None = None) -> None:
        """Wait until all workers have created their object; ``over`` is called once they are no longer needed."""
        self._run, self._over = run, over
        for _ in self._members:
            try:
                connection = self._listener.accept()
                member = self._members[connection.recv()]
            except (OSError, EOFError):
                self.shutdown()
                self._raise()
            member._connection = connection
            threading.Thread(target=member._listen, name="headway-crew", daemon=True).start()

    def _raise(self) -> NoReturn:
        """Raise the error that ended the run before the workers connected."""
        assert self._run is not None
        try:
            self._run.result()
        except TrainingFailedError as error:
            raise (error.__cause__ or error) from None
        raise WorkerDied("a worker exited before it created its object")

    def after_run(self, run_context: TrainRunContext, error: BaseException | None) -> None:
        """Wake the threads that wait for workers to connect, since none will."""
        for member in self._members:
            member._leave()
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as knocking:
            knocking.connect(f"{self._directory.path}/{DOOR}")
        self.close()

    def shutdown(self, patience_s: float = 5) -> None:
        """Hang up, so that the workers are free again."""
        for member in self._members:
            member._hang_up()
        if self._run is not None:
            with contextlib.suppress(TrainingFailedError, TimeoutError):
                self._run.result(patience_s)
        if self._over is not None:
            self._over()
        self.close()

    def close(self) -> None:
        """Remove the socket, even if no run began."""
        self._listener.close()
        self._directory.remove()

    def __getitem__(self, rank: int) -> Member:
        return self._members[rank]

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members)
