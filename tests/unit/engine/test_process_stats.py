"""What the kernel says of a process, and of all that has come from it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headway.engine import process_stats
from headway.engine.process_stats import Entry, ProcessStats, ProcessTable, ProcessTree, members
from support import wait_until

COMPUTE = "while True: pass"
START = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {!r}], start_new_session={}); {}"


def entry(pid: int, parent: int, session: int = 1, started: int = 0) -> Entry:
    return Entry(pid, "S", parent, session, 0.0, 0.0, started)


def test_children_their_children_and_the_session_belong_to_it() -> None:
    found = [entry(5, 1, 5), entry(6, 5, 5), entry(7, 6, 7), entry(8, 1, 5), entry(9, 1, 1), entry(10, 9, 9)]
    assert members(5, {each.pid: each for each in found}) == {5, 6, 7, 8}


def test_one_that_was_seen_before_belongs_to_it_unless_its_number_was_given_to_another() -> None:
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
        process.kill()  # first of all: it may start others all the time
        for pid in members(process.pid, ProcessTable().entries(), tree._known):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.wait()


def grows(tree: ProcessTree, by: Callable[[ProcessStats], float]) -> None:
    """Waits until something has grown."""
    table = ProcessTable()
    table_of = vars(process_stats)["TABLE_LASTS_S"]
    first = tree.look(table)
    assert first is not None

    def has_grown() -> bool:
        time.sleep(table_of)
        now = tree.look(table)
        return now is not None and by(now) > by(first) + 0.3

    wait_until(has_grown, 60)


def test_what_a_grandchild_computes_counts() -> None:
    for session in (False, True):
        with started(START.format(START.format(COMPUTE, session, "time.sleep(99)"), False, "time.sleep(99)")) as tree:
            grows(tree, lambda vital: vital.tree_s - vital.all_s)


def test_one_whose_parent_has_ended_still_counts() -> None:
    with started(START.format(START.format(COMPUTE, False, ""), False, "time.sleep(99)")) as tree:
        grows(tree, lambda vital: vital.tree_s - vital.all_s)


def test_children_that_come_and_go_count() -> None:
    code = "import subprocess, sys\nwhile True: subprocess.run([sys.executable, '-c', 'sum(range(10**6))'])"
    with started(code) as tree:
        grows(tree, lambda vital: vital.tree_s - vital.all_s)


def test_what_a_child_writes_to_a_file_counts() -> None:
    write = "import time; f = open('/dev/null', 'wb', 0)\nwhile True: f.write(bytes(100_000)); time.sleep(0.01)"
    with started(START.format(write, True, "time.sleep(1000)")) as tree:
        wait_until(lambda: tree.look(ProcessTable()).moved_bytes > 1_000_000)


def test_threads_of_ours_are_no_sign_of_life() -> None:
    """In a process of its own: one that looks at itself shares the interpreter's lock with what it looks at."""
    spin = "name_this_thread('hw-test')\n    while True: sum(range(10_000))"
    code = (
        f"import threading, time\nfrom headway.engine.process_stats import name_this_thread\ndef spin():\n    {spin}\n"
    )
    with started(code + "threading.Thread(target=spin).start()\ntime.sleep(1000)") as tree:
        pid, table = tree.pid, ProcessTable()
        wait_until(lambda: any(is_ours(thread) for thread in Path(f"/proc/{pid}/task").glob("*")), 60)
        first, used = tree.look(table), cpu_s(pid)
        wait_until(lambda: cpu_s(pid) > used + 2, 60)
        time.sleep(vars(process_stats)["TABLE_LASTS_S"])
        last = tree.look(table)
    assert first is not None
    assert last is not None
    assert last.all_s - first.all_s < 1, "it ran for two seconds"


def is_ours(thread: Path) -> bool:
    with suppress(OSError):
        return (thread / "comm").read_text().startswith(process_stats.OWN_THREADS)
    return False


def cpu_s(pid: int) -> float:
    return ProcessTable().entries()[pid].cpu_s


def test_a_process_that_is_gone_has_no_vitals() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert ProcessTree(process.pid).look(ProcessTable()) is None
