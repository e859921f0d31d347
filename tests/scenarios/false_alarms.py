"""Runs whose ranks are silent for long, each for a good reason: none may be reported as a stall."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway import data, train
from scenarios.process_tree import kill_all, tree

NUM_HOGS = 12
SUSPENDED_S = 10.0
WARN_S = 5.0  # what FailureConfig says unless it is told otherwise
LATE_S = 120.0  # for a case to end by itself, on a crowded machine
COMPUTE = "import sys, time\nuntil = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < until: pass"


# --- what a rank does while it is silent ---


def compute(seconds: float) -> None:
    """Python code that holds the GIL."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


def digest(seconds: float) -> None:
    """C code that releases the GIL."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        hashlib.pbkdf2_hmac("sha256", b"", b"salt", 100_000)


def threads_compute(seconds: float) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(compute, [seconds] * 2))


def threads_digest(seconds: float) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(digest, [seconds] * 2))


def processes_compute(seconds: float) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(compute, [seconds] * 2)


def fresh_processes_compute(seconds: float) -> None:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        pool.submit(sum, range(int(4e7 * seconds))).result()  # a function that they can import


def subprocess_computes(seconds: float) -> None:
    subprocess.run([sys.executable, "-c", COMPUTE, str(seconds)], check=True)


def shell_computes(seconds: float) -> None:
    """A grandchild, read through a pipe."""
    command = f"{sys.executable} -c '{COMPUTE}' {seconds} | cat"
    subprocess.check_output(["sh", "-c", command])


def many_short_processes(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        subprocess.run([sys.executable, "-c", "sum(range(10**6))"], check=True)


def loader_process_computes(seconds: float) -> None:
    from torch.utils.data import DataLoader

    next(iter(DataLoader(Slow(seconds), num_workers=1)))


class Slow:
    """A dataset that computes for a long time before its first row."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        compute(self._seconds)
        return index


def map_process_imports(seconds: float) -> None:
    """A first batch that waits for a process which imports slowly."""
    with tempfile.TemporaryDirectory() as folder:
        name = f"slow_{os.getpid()}_{time.monotonic_ns()}"
        Path(folder, f"{name}.py").write_text(
            f"import os, time\nif os.getpid() != {os.getpid()}: time.sleep({seconds})\ndef same(batch): return batch\n"
        )
        sys.path.insert(0, folder)
        try:
            same = importlib.import_module(name).same
            for _ in data.range(8).map_batches(same, executor="process").iter_batches(batch_size=4):
                pass
        finally:
            sys.path.remove(folder)


def compiles(seconds: float) -> None:
    """First steps with torch.compile and empty caches, repeated for the given time."""
    import torch

    until, width = time.monotonic() + seconds, 16
    while time.monotonic() < until:
        torch._dynamo.reset()
        layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(6)]
        model = torch.compile(torch.nn.Sequential(*layers))
        model(torch.randn(8, width)).sum().backward()
        width += 8


def matches(seconds: float) -> None:
    """One long call in C on a shared core: about two seconds of work."""
    os.sched_setaffinity(0, {0})
    re.match(r"(a+)+$", "a" * 25 + "b")


@dataclass(frozen=True)
class Case:
    """What a rank does while it is silent, and what happens on the machine at the same time."""

    work: Callable[[float], None]
    hogs: int = 0
    suspended: bool = False


CASES = {
    "torch.compile": Case(compiles),
    "thread pool": Case(threads_compute),
    "thread pool in C": Case(threads_digest),
    "process pool": Case(processes_compute),
    "fresh process pool": Case(fresh_processes_compute),
    "subprocess": Case(subprocess_computes),
    "shell": Case(shell_computes),
    "many short processes": Case(many_short_processes),
    "loader process": Case(loader_process_computes),
    "slow first batch": Case(map_process_imports),
    "hogs": Case(matches, hogs=NUM_HOGS),
    "suspended": Case(time.sleep, suspended=True),
}


def rounds(config: dict[str, Any]) -> None:
    """The training function: in turn one rank works while the other waits, or both work."""
    work, rank = CASES[config["case"]].work, train.get_context().get_world_rank()
    seconds = 0.05 if CASES[config["case"]].suspended else config["work_s"]
    until = time.monotonic() + config["seconds"]
    number = 0
    while train.collective.broadcast_from_rank_zero(time.monotonic() < until or number == 0):
        if rank == 0 or number % 2:
            work(seconds)
        train.collective.barrier()
        train.report({"round": number})
        number += 1


def drive(case: str, seconds: float, work_s: float, folder: Path, warn_s: float = WARN_S) -> None:
    """Run one case in this process."""
    train.DataParallelTrainer(
        rounds,
        train_loop_config={"case": case, "seconds": seconds, "work_s": work_s},
        scaling_config=train.ScalingConfig(2),
        run_config=train.RunConfig(
            name="run",
            storage_path=folder,
            worker_runtime_env={"env_vars": {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}},
            failure_config=train.FailureConfig(stall_warn_s=warn_s, stall_timeout_s=4 * warn_s),
        ),
    ).fit()


def alarms(folder: Path) -> list[str]:
    """Stalls and retries in the journal of the run."""
    lines = map(json.loads, (folder / "run/events.jsonl").read_text().splitlines())
    return [line["text"] for line in lines if line["event"] in ("stall", "retry")]


@contextlib.contextmanager
def crowded(number: int) -> Iterator[None]:
    """Keep the first core busy with processes."""
    code = "import os\nos.sched_setaffinity(0, {0})\nwhile True: pass"
    hogs = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(number)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def suspend(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Suspend all processes for a while, like a laptop whose lid is closed."""
    everybody = tree(process.pid)
    for each in everybody:
        each.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    for each in reversed(everybody):
        each.send_signal(signal.SIGCONT)


def observe(
    name: str, seconds: float, work_s: float, suspended_s: float = SUSPENDED_S, warn_s: float = WARN_S
) -> dict[str, Any]:
    """Run one case in another process; return its number of rounds and its alarms."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder, crowded(case.hogs):
        run = f"drive({name!r}, {seconds}, {work_s}, Path({folder!r}), {warn_s})"
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})"
        code += f"\nfrom pathlib import Path\nfrom scenarios.false_alarms import drive\n{run}"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until = time.monotonic() + seconds + 10 * work_s + LATE_S
        while process.poll() is None and time.monotonic() < until:
            time.sleep(3.0 if case.suspended else 0.2)
            if case.suspended and Path(folder, "run/events.jsonl").exists() and process.poll() is None:
                suspend(process, suspended_s)
        ended = process.poll() == 0
        if not ended:
            kill_all(tree(process.pid))
        assert process.stderr is not None
        with process.stderr:
            said = process.stderr.read().decode(errors="replace")
        metrics = Path(folder, "run/metrics.jsonl").read_text().count('"round"') // 2
        return {"case": name, "rounds": metrics, "alarms": alarms(Path(folder)), "ended": ended or said[-500:]}
