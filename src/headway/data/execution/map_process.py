"""Map processes, which map chunks on another core if Python code does not release the interpreter lock.

worker ──socket: what, where──▶ helper          arrays are in two memory files that both processes map;
       ◀──socket: what, where──                 they are copied once in each direction and never pickled
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import re
import select
import socket
import struct
import traceback
from collections.abc import Sequence
from typing import Any

import cloudpickle

from headway.core.errors import DataError
from headway.data.blocks.chunk import Chunk
from headway.data.operations.base import Chain, Op, RowName, annotate
from headway.engine.helper_process import HelperProcess

_LENGTH = struct.Struct("!Q")
_RAISED = "headway: raised in a map process"
_ROW = re.compile(r"@row (\d+)@")


class SharedBuffer:
    """A memory file that one side writes and the other reads; it grows as needed."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None

    def lay(self, buffers: list[Any]) -> list[tuple[int, int]]:
        """Copy buffers into the file and return their positions."""
        places, end = [], 0
        for buffer in buffers:
            places.append((end, buffer.nbytes))
            end += -(-buffer.nbytes // 64) * 64
        if self._map is None or len(self._map) < end:
            os.ftruncate(self.fd, max(1 << 20, end * 3 // 2))
            self._map = mmap.mmap(self.fd, 0)
        for (first, size), buffer in zip(places, buffers, strict=True):
            self._map[first : first + size] = buffer
        return places

    def take(self, places: list[tuple[int, int]]) -> list[bytearray]:
        """Copy what the other side has written, because it will be overwritten next."""
        need = max((first + size for first, size in places), default=0)
        if need and (self._map is None or len(self._map) < need):
            self._map = mmap.mmap(self.fd, 0)
        return [bytearray(memoryview(self._map)[a : a + size]) for a, size in places] if self._map else []


class BufferChannel:
    """One end of the connection, which sends objects over a socket and their buffers through memory files."""

    def __init__(self, wire: socket.socket, out: SharedBuffer, back: SharedBuffer) -> None:
        self.wire = wire
        self._out = out
        self._in = back

    def send(self, thing: Any) -> None:
        buffers: list[Any] = []
        data = cloudpickle.dumps(thing, protocol=5, buffer_callback=lambda each: buffers.append(each.raw()))
        places = self._out.lay(buffers)
        message = pickle.dumps((data, places))
        self.wire.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self) -> Any:
        """Receive an object; EOFError when the other side has closed."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        data, places = pickle.loads(self._exactly(length))
        return pickle.loads(data, buffers=self._in.take(places))

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.wire.recv(min(1 << 20, size - len(data)))
            if not more:
                raise EOFError
            data += more
        return bytes(data)


class MapProcess:
    """A chain of operations in another process, used by one thread."""

    def __init__(self, ops: tuple[Op, ...]) -> None:
        packed = _packed_ops(ops)
        self._ready = False
        self._files: list[int] = []
        with contextlib.ExitStack() as undo:
            undo.callback(self._close_files)
            for name in ("to", "from"):
                self._files.append(os.memfd_create(f"headway-{name}"))
            self._process = HelperProcess("headway.data.execution.map_process", "map process", "map", self._files)
            undo.callback(self._process.close)
            to, back = map(SharedBuffer, self._files)
            self._line = BufferChannel(self._process.connection, to, back)
            self._send(packed)
            undo.pop_all()

    @property
    def ready(self) -> bool:
        """Whether the process has sent its message that all its imports are done."""
        if not self._ready and select.select([self._line.wire], [], [], 0)[0]:
            self._expect_ready()
        return self._ready

    def _expect_ready(self) -> None:
        """Wait until the process has imported its modules. Hang diagnosis recognizes this function by its name."""
        answer = self._received()
        if isinstance(answer, BaseException):
            raise answer
        self._ready = True

    def __call__(self, chunk: Chunk, row_name: RowName) -> Chunk:
        if not self._ready:
            self._expect_ready()
        self._send(chunk)
        answer: Any = self._received()
        if isinstance(answer, BaseException):
            raise _named(answer, row_name)
        made: Chunk = answer
        return made

    def _send(self, thing: Any) -> None:
        try:
            self._line.send(thing)
        except ConnectionError as error:
            raise self._exited() from error

    def _received(self) -> Any:
        try:
            return self._line.receive()
        except (EOFError, OSError) as error:
            raise self._exited() from error

    def _exited(self) -> DataError:
        code = self._process.exit_code()
        return DataError(
            f"a map process exited (exit code {code}), possibly because it ran out of memory: "
            "lower map(..., concurrency=n)"
        )

    def hang_up(self) -> None:
        """Tell the process to end, without waiting; a call in another thread raises DataError when it has ended."""
        self._process.hang_up()

    def close(self) -> None:
        self._process.close()
        self._close_files()

    def _close_files(self) -> None:
        files, self._files = self._files, []
        for fd in files:
            with contextlib.suppress(OSError):
                os.close(fd)


def _packed_ops(ops: tuple[Op, ...]) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(ops)
    except Exception as error:  # pickling runs the code of the user's objects
        names = ", ".join(op.title for op in ops)
        raise DataError(f"{names} cannot be sent to a map process: {error}") from error
    return data


def _named(error: BaseException, row_name: RowName) -> BaseException:
    """Replace row numbers within the chunk, which are all that the process knows, by row names."""
    notes, error.__notes__ = getattr(error, "__notes__", []), []
    for note in notes:
        if note.startswith(_RAISED):
            error.add_note(note)
        else:
            annotate(error, _ROW.sub(lambda found: row_name(int(found[1])), note))
    return error


# --- in the helper ---


def main(connection: socket.socket, fds: Sequence[int]) -> None:
    to, back = fds
    line = BufferChannel(connection, SharedBuffer(back), SharedBuffer(to))
    try:
        chain = Chain(cloudpickle.loads(line.receive()))
        line.send("ready")
        while True:
            _answer(line, chain)
    except EOFError:
        return
    except BaseException as error:  # for example if the function cannot be unpickled; the worker raises it
        with contextlib.suppress(OSError):
            line.send(_packed(error))


def _answer(line: BufferChannel, chain: Chain) -> None:
    chunk = line.receive()
    try:
        answer: Any = chain(chunk, lambda number: f"@row {number}@")
    except Exception as error:  # raised by the user's function; the worker raises it again
        answer = _packed(error)
    line.send(answer)


def _packed(error: BaseException) -> BaseException:
    text = "".join(traceback.format_exception(error))
    try:
        again: BaseException = pickle.loads(cloudpickle.dumps(error))
    except Exception:  # a user's exception class that cannot be pickled
        again = DataError(f"{type(error).__name__}: {error}")
        again.__notes__ = list(getattr(error, "__notes__", []))
    again.add_note(f"{_RAISED}:\n{text}")
    return again
