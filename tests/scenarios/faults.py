"""Ways to hang a training run, each with the rank and the class of fault that must be named.

Used by ``benchmarks/hangs.py`` with the real clocks, and by the tests with shortened ones. Every function is the loop
body of one rank: in step ``BAD_STEP`` the bad rank does what it must not do, and all others go on into a collective.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from headway import train
from headway.train.torch import prepare_data_loader, prepare_model

BAD_STEP = 5
BAD_RANK = 1


class Rows(Dataset[Any]):
    """A few rows; the bad rank's loader hangs on one of them, if it is told to."""

    def __init__(self, hangs: bool) -> None:
        self._hangs = hangs
        self._count = 0

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        self._count += 1
        if self._hangs and self._count > 4 * BAD_STEP:
            read_the_disk_for_ever()
        return torch.full((4,), float(index))


def read_the_disk_for_ever() -> None:
    threading.Event().wait()


def steps(rank: int, fault: str, group: Any = None) -> Iterator[int]:
    """A plain DDP loop; what goes wrong is the caller's business. ``group``: of the ranks that take part."""
    hangs = rank == BAD_RANK and fault.startswith("loader")
    processes = 1 if fault == "loader process" else 0
    loader = prepare_data_loader(DataLoader(Rows(hangs), batch_size=4, num_workers=processes))
    model: Any = nn.Linear(4, 1)
    model = prepare_model(model) if group is None else nn.parallel.DistributedDataParallel(model, process_group=group)
    for step, batch in enumerate(loader):
        yield step
        model(batch).sum().backward()
        train.report({"step": step})


def run(config: dict[str, Any]) -> None:
    """The training function: every rank in step until the bad one does it.

    With ``reporter`` the last rank takes no part: it reports on and on, ten times a second.
    """
    rank, fault = dist.get_rank(), config["fault"]
    group = None
    if config.get("reporter"):
        reporter = dist.get_world_size() - 1
        group = dist.new_group(list(range(reporter)))
        if rank == reporter:
            return report_on(config["reporter"])
    for step in steps(rank, fault, group):
        time.sleep(0.02)
        if fault == "misses a barrier" and step == BAD_STEP and rank != BAD_RANK:
            train.collective.barrier()
        if step == BAD_STEP and rank == BAD_RANK and not os.path.exists(config.get("marker", "")):
            if config.get("marker"):
                open(config["marker"], "w").close()
            if FAULTS[fault].act(group) == "leave":
                return


def report_on(seconds: float) -> None:
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        train.report({"reporter": number})
        number += 1
        time.sleep(0.1)


# --- what goes wrong ---


def stop(group: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def busy_loop(group: Any) -> None:
    number = 0
    while True:
        number += 1


def hold_the_interpreter(group: Any) -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")


def deadlock(group: Any) -> None:
    lock = threading.Lock()
    lock.acquire()
    with lock:
        pass


def deadlock_of_two(group: Any) -> None:
    first, second = threading.Lock(), threading.Lock()

    def other() -> None:
        with second:
            time.sleep(0.3)
            with first:
                pass

    thread = threading.Thread(target=other, daemon=True)
    with first:
        thread.start()
        time.sleep(0.1)
        with second:
            pass


def wait_for_a_thread(group: Any) -> None:
    thread = threading.Thread(target=read_the_disk_for_ever, daemon=True)
    thread.start()
    thread.join()


def sleep(group: Any) -> None:
    time.sleep(10_000)


def another_collective(group: Any) -> None:
    dist.broadcast(torch.zeros(3), src=0, group=group)


def one_collective_more(group: Any) -> None:
    dist.barrier(group)


def leave_early(group: Any) -> str:
    return "leave"


def read_a_pipe(group: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(f"{folder}/pipe")
        open(f"{folder}/pipe").read()


def read_the_network(group: Any) -> None:
    ours, _theirs = socket.socketpair()
    ours.recv(1)


def wait_for_a_child(group: Any) -> None:
    subprocess.run(["sleep", "10000"], check=True)


def straggle(group: Any) -> None:
    """Works and works, now here and now there."""
    while True:
        _sort_numbers()
        _multiply()


def _sort_numbers() -> None:
    until = time.monotonic() + 0.31
    while time.monotonic() < until:
        sorted(range(20_000), key=lambda n: -n)


def _multiply() -> None:
    until = time.monotonic() + 0.23
    while time.monotonic() < until:
        torch.ones(200, 200) @ torch.ones(200, 200)


def raise_an_error(group: Any) -> None:
    raise ValueError("a bad row")


def die(group: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_quietly(group: Any) -> None:
    os._exit(3)


def eat_memory(group: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    bytearray(16 << 30)


@dataclass(frozen=True)
class Fault:
    """A way to hang or to end.

    Args:
        act: What the bad rank does; it is given the group of those that train.
        expected: The class that must be named.
        stall: It is one that only silence tells.
        num_workers: That train.
    """

    act: Callable[[Any], Any]
    expected: tuple[str, ...]
    stall: bool = True
    num_workers: int = 2


FAULTS: dict[str, Fault] = {
    "stopped": Fault(stop, ("stopped",)),
    "busy loop": Fault(busy_loop, ("busy",)),
    "holds the interpreter": Fault(hold_the_interpreter, ("busy",)),
    "deadlock on a lock": Fault(deadlock, ("lock",)),
    "deadlock of two threads": Fault(deadlock_of_two, ("lock",)),
    "waits for a thread": Fault(wait_for_a_thread, ("lock",)),
    "asleep": Fault(sleep, ("sleep",)),
    "different collectives": Fault(another_collective, ("mismatch",), num_workers=3),
    "one collective more": Fault(one_collective_more, ("mismatch",), num_workers=3),
    "uneven number of batches": Fault(leave_early, ("uneven",)),
    "loader": Fault(lambda group: None, ("loader",)),
    "loader process": Fault(lambda group: None, ("loader",)),
    "reads a pipe": Fault(read_a_pipe, ("io",)),
    "reads the network": Fault(read_the_network, ("io",)),
    "waits for a child": Fault(wait_for_a_child, ("child",)),
    "slow straggler": Fault(straggle, ("slow",)),
    "misses a barrier": Fault(sleep, ("sleep",)),
    "raises": Fault(raise_an_error, ("exception",), stall=False),
    "killed": Fault(die, ("dead",), stall=False),
    "exits": Fault(exit_quietly, ("dead",), stall=False),
    "out of memory": Fault(eat_memory, ("out of memory",), stall=False),
}
