"""The object that a line of code waits for, found by name without running code of the objects."""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headway.diagnosis import awaited_objects, stacks
from hostile_objects import Holder, Liar, Strange, dead_proxy, guarded, waiting
from support import wait_until


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
            seen[work.__name__] = awaited_objects.hint(frame)
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
        assert awaited_objects.hint(frame) == "lock"
    over.set()


@pytest.mark.parametrize("line", ["strange.acquire()", "strange", "len(strange)", "strange[0]"])
def test_no_object_that_a_line_names_can_raise_or_block(line: str) -> None:
    for make in (guarded, dead_proxy, Liar):
        names: dict[str, Any] = {"strange": make(), "sys": sys, "awaited_objects": awaited_objects}
        code = compile(f"found = awaited_objects.hint(sys._getframe()) if True else {line}", __file__, "exec")
        exec(code, names)
        assert names["found"] == ""
        assert awaited_objects._kinds(sys._getframe(), ["make", "x"]) == []
        assert awaited_objects._kinds(named(names["strange"]), line.partition("(")[0].split(".")) == []


def named(strange: Any) -> Any:
    return sys._getframe()


def test_slots_and_instances_are_looked_up_and_properties_are_not() -> None:
    class Slotted:
        __slots__ = ("lock",)

        def __init__(self) -> None:
            self.lock = threading.Lock()

    frame = named(Slotted())
    assert awaited_objects._kinds(frame, ["strange", "lock"]) == ["lock"]
    assert awaited_objects._kinds(named(Holder()), ["strange", "mutex", "acquire"]) == ["lock"]
    assert awaited_objects._kinds(named(Strange()), ["strange", "lock"]) == []


def test_a_pipe_or_a_device_that_calls_itself_a_source_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in (str(tmp_path / "pipe"), "/dev/zero", "<string>"):
        names: dict[str, Any] = {"stacks": stacks, "awaited_objects": awaited_objects, "sys": sys}
        exec(compile("told = awaited_objects.hint(sys._getframe()), stacks.all_threads()", file, "exec"), names)
        assert names["told"][0] == ""
