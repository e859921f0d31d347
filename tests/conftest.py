"""Fail a test that leaks a process, a thread, an environment variable, or a file in shared memory or /tmp.

Only processes and files of this suite are checked: it has its own temporary directory and its own directory in shared
memory, so other suites and programs may run at the same time.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from headway.engine import fork_server_client

sys.path.insert(0, str(Path(__file__).parent))

from s3 import S3

settings.register_profile("headway", deadline=None, database=None)  # machines are noisy; a clone stays clean
settings.load_profile("headway")

_PR_SET_CHILD_SUBREAPER = 36
_PRIVATE = Path(tempfile.mkdtemp(prefix="hw-"))  # short: sockets lie in there
_MEMORY = Path("/dev/shm", _PRIVATE.name)


def pytest_configure() -> None:
    """Set the suite's own directories, and signal handlers as in a terminal."""
    _MEMORY.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(_PRIVATE)
    os.environ["HEADWAY_MEMORY_DIR"] = str(_MEMORY)
    os.environ["HEADWAY_KEY_FILE"] = str(_PRIVATE / "key")
    # A shell, or nohup, has a background job ignore these, and children inherit it.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    # Orphans become our children instead of init's: so they are seen.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def pytest_unconfigure() -> None:
    fork_server_client.end_fork_servers()
    for folder in (_MEMORY, _PRIVATE):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """A healthy server, which this process and those that it starts will find."""
    s3_server.faults()
    for name, value in s3_server.env.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWAY_RESULTS", str(tmp_path / "results"))
        before = {name: look() for name, look in LOOKS.items()}
        yield
        for name, look in LOOKS.items():
            left = _settled(look, before[name])
            assert not left, f"the test left {name} behind: {left}"


def _settled(look: Callable[[], set[str]], before: set[str], patience_s: float = 3.0) -> set[str]:
    until = time.monotonic() + patience_s
    if look() - before:
        gc.collect()  # a temporary directory goes with its last reference, which may be part of a cycle
    while (left := look() - before) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def _processes() -> set[str]:
    """Our descendants, fork servers excepted: they are meant to stay."""
    ours = {pid for server in fork_server_client._fork_servers.values() for pid in (server.pid, *server.reaper_pids)}
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            tracker = "resource_tracker" in " ".join(process.cmdline())
            if process.pid not in ours and not tracker and process.status() != psutil.STATUS_ZOMBIE:
                found.add(f"{process.pid} {process.name()}")  # its state may change, and it is the same process
        except psutil.NoSuchProcess:
            continue
    return found


def _threads() -> set[str]:
    lasting = ("tqdm", "fsspec")  # threads that these packages keep for good
    found = (thread for thread in threading.enumerate() if not any(name in thread.name.lower() for name in lasting))
    return {f"{thread.name} {thread.ident}" for thread in found}


def _environment() -> set[str]:
    return {f"{name}={value}" for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def _shared_memory() -> set[str]:
    """Files in this suite's directory, and segments of torch whose process has ended."""
    segments = (re.match(r"torch_(\d+)_", name) for name in os.listdir("/dev/shm"))
    return {
        *os.listdir(_MEMORY),
        *(found.string for found in segments if found and not psutil.pid_exists(int(found[1]))),
    }


def _temporary_files() -> set[str]:
    kept = {server.directory.name for server in fork_server_client._fork_servers.values()}
    return {name for name in os.listdir(_PRIVATE) if "headway" in name or "pymp-" in name} - kept


LOOKS: dict[str, Callable[[], set[str]]] = {
    "processes": _processes,
    "threads": _threads,
    "environment variables": _environment,
    "shared memory": _shared_memory,
    "temporary files": _temporary_files,
}
