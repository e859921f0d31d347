"""Objects that run code, block or raise when anything of them is used: a stack dump must not mind."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

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
