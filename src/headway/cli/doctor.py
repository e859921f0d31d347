"""``headway doctor``: checks this machine's system, torch, GPUs, memory, limits and storage, and starts two workers."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from headway.core import phrases
from headway.core.config import LoggingConfig, RunConfig, ScalingConfig
from headway.core.environment import expanded, results_folder
from headway.core.errors import HeadwayError
from headway.engine.resources import hardware
from headway.observe.terminal_text import plain
from headway.train.trainer import DataParallelTrainer

Verdict = Literal["ok", "note", "bad"]
MARKS: dict[Verdict, str] = {"ok": "✓", "note": "·", "bad": "✗"}


@dataclass(frozen=True)
class Finding:
    """The result of one check. ``bad``: runs will fail; ``note``: an optional feature does not work."""

    verdict: Verdict
    what: str
    detail: str


def doctor(storage_path: str | None) -> int:
    """Print all findings; return 1 if one is bad."""
    storage = expanded(storage_path) if storage_path else results_folder()
    bad = 0
    for finding in findings(storage):
        print(f"{MARKS[finding.verdict]} {finding.what:<14}{plain(finding.detail)}", flush=True)
        bad += finding.verdict == "bad"
    print(f"\n{phrases.count(bad, 'problem')} found" if bad else "\nEverything that Headway needs works here.")
    return 1 if bad else 0


def findings(storage: Path) -> Iterator[Finding]:
    checks: list[Callable[[], Finding]] = [
        _system,
        _torch,
        _devices,
        _memory,
        _shared_memory,
        _limits,
        _loopback,
        _ptrace,
        lambda: _storage(storage),
        _workers,
    ]
    for check in checks:
        yield check()


def _system() -> Finding:
    text = f"Python {platform.python_version()} on {platform.system()} {platform.release()}, {hardware.num_cpus()} CPUs"
    if sys.platform != "linux":
        return Finding("bad", "system", f"{text}: workers need Linux; num_workers=0 works everywhere")
    missing = [name for name in ("pidfd_open", "memfd_create", "eventfd") if not hasattr(os, name)]
    if missing:
        return Finding("bad", "system", f"{text}: the kernel or Python lacks {', '.join(missing)}")
    return Finding("ok", "system", text)


def _torch() -> Finding:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("note", "torch", "not installed: TorchTrainer needs it (pip install 'headway[torch]')")
    return Finding("ok", "torch", version)


def _devices() -> Finding:
    gpus = hardware.gpus()
    return Finding("ok", "devices", f"{phrases.count(len(gpus), 'GPU')} ({', '.join(gpus)})" if gpus else "CPU only")


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    text = f"{phrases.size(memory.available)} of {phrases.size(memory.total)} free"
    return Finding("ok" if memory.available > 1e9 else "note", "memory", text)


def _shared_memory() -> Finding:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError as error:
        return Finding(
            "bad", "shared memory", f"/dev/shm cannot be used ({error.strerror}): DataLoader processes need it"
        )
    if free < 64e6:
        text = f"only {phrases.size(free)} in /dev/shm: DataLoader processes may be killed (docker run --shm-size=1g)"
        return Finding("bad", "shared memory", text)
    return Finding("ok", "shared memory", f"{phrases.size(free)} free in /dev/shm")


def _limits() -> Finding:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    text = f"{_limit(files)} open files, {_limit(processes)} processes"
    if 0 <= files < 256:
        return Finding("bad", "limits", f"{text}: raise it (ulimit -n 4096)")
    return Finding("ok", "limits", text)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"


def _loopback() -> Finding:
    if not any(name == "lo" for _, name in socket.if_nameindex()):
        return Finding("bad", "loopback", "interface 'lo' is missing: gloo and NCCL need it")
    return Finding("ok", "loopback", "interface lo exists; Headway listens on no other")


def _ptrace() -> Finding:
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        scope = "0"
    if scope == "0" or os.geteuid() == 0:
        return Finding("ok", "ptrace", "stacks of stuck processes can be read from outside")
    return Finding(
        "note", "ptrace", f"restricted (ptrace_scope {scope}): py-spy cannot read the stacks of running workers"
    )


def _storage(storage: Path) -> Finding:
    parent = next(path for path in (storage, *storage.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=parent) as file:
            began = time.perf_counter()
            file.write(bytes(16 << 20))
            file.flush()
            os.fsync(file.fileno())
            speed = (16 << 20) / (time.perf_counter() - began)
    except OSError as error:
        return Finding("bad", "storage", f"{storage} cannot be written ({error.strerror}): set HEADWAY_RESULTS")
    free = shutil.disk_usage(parent).free
    text = f"{storage}: {phrases.size(free)} free, writes {phrases.size(speed)}/s"
    return Finding("ok" if free > 1e9 else "note", "storage", text)


def _workers() -> Finding:
    """Run two workers that meet at a barrier."""
    with tempfile.TemporaryDirectory() as directory:
        quiet = RunConfig(storage_path=directory, logging_config=LoggingConfig("ERROR"))
        trainer = DataParallelTrainer(_meet, scaling_config=ScalingConfig(num_workers=2), run_config=quiet)
        began = time.perf_counter()
        try:
            trainer.fit()
        except (HeadwayError, OSError) as error:
            return Finding("bad", "workers", f"two workers could not be run: {error}")
        return Finding("ok", "workers", f"two workers started and connected in {time.perf_counter() - began:.2f} s")


def _meet() -> None:
    from headway.train import collective

    collective.barrier()
