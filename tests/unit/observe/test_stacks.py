"""What threads are doing, told without calling anything of the user's."""

from __future__ import annotations

import faulthandler
import os
import queue
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.observe import hints, stacks
from headway.observe.stacks import all_threads, described, from_faulthandler, of_error


class Strange:
    """Whoever calls anything of it will regret it."""

    def __repr__(self) -> str:
        raise AssertionError("repr was called")

    @property
    def lock(self) -> Any:
        raise AssertionError("a property was called")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("__getattr__ was called")


def test_values_are_cut_short_and_secrets_left_out() -> None:
    def work(password: str, api_token: str) -> None:
        numbers, strange = list(range(1000)), Strange()
        settings = {"secret_key": "abc", "lr": 0.1}
        text = "x" * 1000
        raise ValueError(f"{len(numbers)} {len(settings)} {len(text)} {strange is None}", {"pwd": "cor-rect"})

    password, api_token = "-".join(["hunter", "2"]), "-".join(["t", "0ken"])
    try:
        work(password, api_token)
    except ValueError as error:
        told = of_error(error)
    assert "hunter-2" not in told
    assert "t-0ken" not in told
    assert "abc" not in told
    assert "cor-rect" not in told, "nor in the line of code that is shown"
    assert "password = (left out)" in told
    assert "numbers = list of 1000: 0, 1, 2, 3" in told
    assert "strange = <test_stacks.Strange>" in told
    assert "'lr': 0.1" in told
    assert "x" * 100 not in told


def test_tensors_and_arrays_are_described_by_their_shape() -> None:
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    assert described(torch.zeros(3, 4)) == "Tensor (3, 4) torch.float32 on cpu"
    assert described(torch.nn.Parameter(torch.zeros(2))) == "Parameter (2,) torch.float32 on cpu"
    assert described(numpy.zeros((2, 2))) == "ndarray (2, 2) float64"


@contextmanager
def waiting(work: Callable[[], object]) -> Iterator[Any]:
    """The innermost frame of a thread that waits in ``work``."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    time.sleep(0.1)
    assert thread.ident is not None
    yield sys._current_frames()[thread.ident]


class Holder:
    def __init__(self) -> None:
        self.mutex = threading.Lock()


def test_a_line_is_known_by_what_it_names() -> None:
    lock, holder, nothing, over = threading.Lock(), Holder(), queue.SimpleQueue[int](), threading.Event()
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    lock.acquire()
    holder.mutex.acquire()

    def take_it() -> None:
        with lock:
            pass

    def take_its() -> None:
        holder.mutex.acquire()

    def get() -> None:
        nothing.get()

    def receive() -> None:
        ours.recv(1)

    def read() -> None:
        os.read(reader, 1)

    def nap() -> None:
        time.sleep(0.5)

    seen = {}
    for work in (take_it, take_its, get, receive, read, nap):
        with waiting(work) as frame:
            seen[work.__name__] = hints.hint(frame)
    lock.release()
    holder.mutex.release()
    nothing.put(1)
    theirs.send(b"x")
    os.write(writer, b"x")
    over.set()
    time.sleep(0.6)
    for closing in (ours, theirs):
        closing.close()
    os.close(reader)
    os.close(writer)
    assert seen == {"take_it": "lock", "take_its": "lock", "get": "lock", "receive": "io", "read": "io", "nap": "sleep"}


def test_looking_at_a_line_runs_nothing_of_the_users() -> None:
    strange, over = Strange(), threading.Event()

    def work() -> None:
        assert over.wait(5) or strange.lock.acquire()

    with waiting(work) as frame:
        while frame.f_code.co_name != "work":
            frame = frame.f_back
        assert hints.hint(frame) == "lock"
    over.set()


def test_all_threads_are_told_but_ours() -> None:
    over = threading.Event()

    def wait_here() -> None:
        over.wait(5)

    threads = [threading.Thread(target=wait_here, name=name) for name in ("loader", "headway-link")]
    for thread in threads:
        thread.start()
    told = all_threads()
    over.set()
    for thread in threads:
        thread.join()
    assert "thread MainThread:" in told
    assert "thread loader:" in told
    assert "in wait_here" in told
    assert "headway-link" not in told


def test_what_faulthandler_writes_is_read_back() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait, args=(5,))
    thread.start()
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        frames = from_faulthandler(file.read())
    over.set()
    thread.join()
    assert frames[-1].function == "test_what_faulthandler_writes_is_read_back"
    assert Path(frames[-1].file).name == "test_stacks.py"


def test_the_main_thread_tells_its_calls_with_the_innermost_last() -> None:
    assert stacks.main_thread()[-1].function in ("main_thread", "_frame", "<genexpr>")
