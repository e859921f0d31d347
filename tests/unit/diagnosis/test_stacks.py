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
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.diagnosis import hints, stacks
from headway.diagnosis.stacks import all_threads, described, from_faulthandler, of_error
from support import wait_until


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
    assert f"strange = <{__name__}.Strange>" in told
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
    thread = threading.Thread(target=work, name="waiting", daemon=True)
    thread.start()
    assert thread.ident is not None
    ident = thread.ident

    def is_in_its_body() -> bool:
        """Whether ``work`` runs, and is past its ``def`` line."""
        frame = sys._current_frames().get(ident)
        starting = frame is None or frame.f_code.co_name in ("_bootstrap", "_bootstrap_inner", "run")
        return not starting and frame.f_lineno > frame.f_code.co_firstlineno

    wait_until(is_in_its_body)
    yield sys._current_frames()[ident]


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
        time.sleep(3)

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
    wait_until(lambda: not any(thread.name == "waiting" for thread in threading.enumerate()))
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


class Hostile(type):
    """Even looking at a class of this kind runs code."""

    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(f"{name} of a class was looked at")

    def __instancecheck__(cls, value: object) -> bool:
        raise RuntimeError("isinstance was called")


class Guarded(metaclass=Hostile):
    """Whoever looks at anything of it blocks for longer than a test may take, or regrets it."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            time.sleep(600)
        raise RuntimeError(f"{name} was looked at")

    def __len__(self) -> int:
        raise RuntimeError("len was called")

    __repr__ = __str__ = __hash__ = __eq__ = __iter__ = __bool__ = __len__  # type: ignore[assignment]


class Liar:
    shape = dtype = property(lambda self: time.sleep(600))

    @property
    def __class__(self) -> Any:
        raise RuntimeError("__class__ was looked at")


Liar.__module__, Liar.__qualname__ = "torch", "Tensor"


class Text(str):
    def startswith(self, *args: Any) -> bool:
        raise RuntimeError("startswith was called")

    __len__ = __getitem__ = lstrip = startswith  # type: ignore[assignment]


class Thing:
    pass


def dead_proxy() -> Any:
    return weakref.proxy(Thing())


def own_tensor() -> Any:
    torch = pytest.importorskip("torch")

    class Own(torch.Tensor):  # type: ignore[misc, name-defined]
        @classmethod
        def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("a tensor ran code")

    return torch.zeros(2).as_subclass(Own)


def guarded() -> Any:
    return object.__new__(Guarded)


HOSTILE: dict[str, Callable[[], Any]] = {
    "a dead proxy": dead_proxy,
    "a class whose class raises": guarded,
    "an object that says it is a tensor": Liar,
    "a text with methods of its own": lambda: Text("--token"),
    "a list of them": lambda: [guarded(), dead_proxy(), Text("x"), "--token", Text("hunter2")],
    "a dict of them": lambda: {"a": guarded(), Text("password"): Liar()},
    "a tensor that runs code": own_tensor,
    "a number of a million digits and more": lambda: 1 << 10_000_000,
    "a giant list": lambda: [0] * 10_000_000,
    "a giant text": lambda: "x" * 50_000_000,
    "a giant text in a list": lambda: ["x" * 50_000_000, "--a"],
    "a giant set": lambda: frozenset(range(300_000)),
    "half a character": lambda: "\ud800",
    "itself": lambda: (lambda found: found.append(found) or found)([]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_object_can_raise_or_block_whoever_looks_at_it(name: str) -> None:
    def work(strange: Any) -> None:
        over.wait(60), strange

    over, strange = threading.Event(), HOSTILE[name]()
    with waiting(lambda: work(strange)):
        told = all_threads()
        over.set()
    assert "strange = " in told
    told.encode()


@pytest.mark.parametrize("line", ["strange.acquire()", "strange", "len(strange)", "strange[0]"])
def test_no_object_that_a_line_names_can_raise_or_block(line: str) -> None:
    for make in (guarded, dead_proxy, Liar):
        names: dict[str, Any] = {"strange": make(), "sys": sys, "hints": hints}
        code = compile(f"found = hints.hint(sys._getframe()) if True else {line}", __file__, "exec")
        exec(code, names)
        assert names["found"] == ""
        assert hints._kinds(sys._getframe(), ["make", "x"]) == []
        assert hints._kinds(named(names["strange"]), line.partition("(")[0].split(".")) == []


def named(strange: Any) -> Any:
    return sys._getframe()


def test_slots_and_instances_are_looked_up_and_properties_are_not() -> None:
    class Slotted:
        __slots__ = ("lock",)

        def __init__(self) -> None:
            self.lock = threading.Lock()

    frame = named(Slotted())
    assert hints._kinds(frame, ["strange", "lock"]) == ["lock"]
    assert hints._kinds(named(Holder()), ["strange", "mutex", "acquire"]) == ["lock"]
    assert hints._kinds(named(Strange()), ["strange", "lock"]) == []


def test_a_pipe_or_a_device_that_calls_itself_a_source_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in (str(tmp_path / "pipe"), "/dev/zero", "<string>"):
        names: dict[str, Any] = {"stacks": stacks, "hints": hints, "sys": sys}
        exec(compile("told = hints.hint(sys._getframe()), stacks.all_threads()", file, "exec"), names)
        assert names["told"][0] == ""
