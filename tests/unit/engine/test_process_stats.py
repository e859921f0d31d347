"""Statistics of a process and its descendants, read from ``/proc``."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from headway.engine import process_stats
from headway.engine.process_stats import Entry, OutsideStacks, ProcessTable, ProcessTree, members
from support import becomes_true, wait_until

COMPUTE = "while True: pass"
START = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {!r}], start_new_session={}); {}"


def entry(pid: int, parent: int, session: int = 1, started: int = 0) -> Entry:
    return Entry(pid, "S", parent, session, 0.0, 0.0, started)


def test_a_process_tree_holds_descendants_and_all_processes_of_the_session() -> None:
    found = [entry(5, 1, 5), entry(6, 5, 5), entry(7, 6, 7), entry(8, 1, 5), entry(9, 1, 1), entry(10, 9, 9)]
    assert members(5, {each.pid: each for each in found}) == {5, 6, 7, 8}


def test_an_orphan_stays_in_the_tree_unless_its_pid_was_reused() -> None:
    found = {each.pid: each for each in (entry(5, 1, 5), entry(7, 1, 7, started=70))}
    assert members(5, found, {7: 70}) == {5, 7}
    assert members(5, found, {7: 71}) == {5}


@contextmanager
def started(code: str) -> Iterator[ProcessTree]:
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    tree = ProcessTree(process.pid)
    try:
        yield tree
    finally:
        process.kill()  # first, because it may keep starting others
        for pid in members(process.pid, ProcessTable().entries(), tree._known):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.wait()


def descendants_use_cpu(tree: ProcessTree) -> bool:
    """Whether the CPU time of the process's descendants grows, without its own time."""
    first = tree.look(ProcessTable())
    assert first is not None

    def has_grown() -> bool:
        now = tree.look(ProcessTable())
        return now is not None and now.tree_s - now.all_s > first.tree_s - first.all_s + 0.3

    return becomes_true(has_grown, 60)


@pytest.mark.parametrize("own_session", [False, True])
def test_cpu_time_of_a_grandchild_counts(own_session: bool) -> None:
    child = START.format(COMPUTE, own_session, "time.sleep(99)")
    with started(START.format(child, False, "time.sleep(99)")) as tree:
        assert descendants_use_cpu(tree)


def test_cpu_time_of_an_orphaned_process_still_counts() -> None:
    with started(START.format(START.format(COMPUTE, False, ""), False, "time.sleep(99)")) as tree:
        assert descendants_use_cpu(tree)


def test_cpu_time_of_children_that_have_exited_counts() -> None:
    code = "import subprocess, sys\nwhile True: subprocess.run([sys.executable, '-c', 'sum(range(10**6))'])"
    with started(code) as tree:
        assert descendants_use_cpu(tree)


def test_bytes_that_a_child_writes_count() -> None:
    write = "import time; f = open('/dev/null', 'wb', 0)\nwhile True: f.write(bytes(100_000)); time.sleep(0.01)"
    with started(START.format(write, True, "time.sleep(1000)")) as tree:
        assert becomes_true(lambda: tree.look(ProcessTable()).moved_bytes > 1_000_000)


def test_cpu_time_of_internal_threads_does_not_count() -> None:
    """Run in a separate process, because a process that measures itself shares the interpreter lock with the work."""
    spin = "name_this_thread('hw-test')\n    while True: sum(range(10_000))"
    code = (
        f"import threading, time\nfrom headway.engine.process_stats import name_this_thread\ndef spin():\n    {spin}\n"
    )
    with started(code + "threading.Thread(target=spin).start()\ntime.sleep(1000)") as tree:
        pid = tree.pid
        wait_until(lambda: any(is_internal(thread) for thread in Path(f"/proc/{pid}/task").glob("*")), 60)
        first, used = tree.look(ProcessTable()), cpu_s(pid)
        wait_until(lambda: cpu_s(pid) > used + 2, 60)
        last, spun_s = tree.look(ProcessTable()), cpu_s(pid) - used
    assert first is not None
    assert last is not None
    assert last.all_s - first.all_s < spun_s / 2


def is_internal(thread: Path) -> bool:
    with suppress(OSError):
        return (thread / "comm").read_text().startswith(process_stats.OWN_THREADS)
    return False


def cpu_s(pid: int) -> float:
    return ProcessTable().entries()[pid].cpu_s


def test_stacks_are_requested_without_interrupting_a_write_of_the_user(tmp_path: Path) -> None:
    """A signal to the thread that writes would end the write with a part of the bytes."""
    code = f"""
import faulthandler, os, threading, time
from headway.engine.process_stats import STACKS_SIGNAL, name_this_thread
def rest():
    name_this_thread("hw-test")
    time.sleep(1000)
faulthandler.register(STACKS_SIGNAL, open({str(tmp_path / "stacks")!r}, "w"), all_threads=True)
threading.Thread(target=rest, daemon=True).start()
written = os.write(1, bytes(1 << 20))
os.write(2, str(written).encode())
"""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:  # type: ignore[call-overload]
        threads = Path(f"/proc/{process.pid}/task")
        wait_until(lambda: select.select([process.stdout], [], [], 0)[0] and any(map(is_internal, threads.glob("*"))))
        stacks = OutsideStacks(process.pid, str(tmp_path / "stacks"))
        try:
            wait_until(lambda: "<module>" in stacks.read()[0])
        finally:
            stacks.close()
        assert len(process.stdout.read()) == 1 << 20
        assert process.stderr.read() == str(1 << 20).encode()


def test_a_process_that_has_exited_has_no_statistics() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert ProcessTree(process.pid).look(ProcessTable()) is None
