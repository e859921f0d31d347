"""The setup of a worker's process, with the driver's environment and separate logs and random states, and its exit."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import hashlib
import importlib
import importlib.machinery
import io
import os
import random
import sys
import threading
from multiprocessing import process
from pathlib import Path
from typing import Any

from headway.core.environment import preamble
from headway.core.messages import ProcessSetup, RankAssignment, RunInfo
from headway.engine.process_stats import STACKS_SIGNAL
from headway.storage.fs_ops import open_to_append


def apply_setup(setup: ProcessSetup, before: ProcessSetup | None = None) -> None:
    """Apply the driver's environment, because the fork server may have started before it changed.

    ``before``: the setup of this process's previous run. Settings equal in both stay as user code left them.
    """
    known = os.environ if before is None else before.env
    for name in known.keys() - setup.env.keys():
        os.environ.pop(name, None)
    previous = {} if before is None else before.env
    os.environ.update({name: value for name, value in setup.env.items() if previous.get(name) != value})
    if before is None or before.cwd != setup.cwd:
        os.chdir(setup.cwd)
    if before is None or before.sys_path != setup.sys_path:
        sys.path[:] = setup.sys_path
    sys.argv[:] = setup.argv
    if setup.main_file:  # multiprocessing reads both when it spawns a process
        main = sys.modules["__main__"]
        main.__file__ = setup.main_file
        main.__spec__ = importlib.machinery.ModuleSpec(setup.main_name, None) if setup.main_name else None
    if (entry := preamble()) is not None:
        module, _, name = entry.partition(":")
        getattr(importlib.import_module(module), name)()


def redirect_output(out: Path, err: Path) -> None:
    """Write all output of Python and C code to these files from now on."""
    for path, fd in ((out, 1), (err, 2)):
        log = open_to_append(path)
        os.dup2(log, fd)
        os.close(log)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.BufferedWriter(_LogFile(fd, "w", closefd=False)),
            encoding="utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        for fd in (1, 2)
    )
    faulthandler.enable()


class _LogFile(io.FileIO):
    """A log file that drops what cannot be written, such as on a full disk, so that ``print()`` never ends training."""

    num_lost = 0

    def write(self, data: Any, /) -> int:  # any buffer, as in FileIO
        try:
            if self.num_lost and super().write(f"\n… {self.num_lost:,} bytes were lost: the disk was full\n".encode()):
                self.num_lost = 0
            return super().write(data) or 0
        except OSError:
            self.num_lost += len(data)
            return len(data)


def seed_random(run: RunInfo, place: RankAssignment) -> None:
    """Give each rank different random states, because forked workers start with equal ones.

    A rank starts with the same states in every attempt, so rows held out at random stay held out after a restart.
    """
    digest = hashlib.sha256(f"{run.seed}:{place.rank}".encode()).digest()
    number = int.from_bytes(digest[:4], "big")
    random.seed(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(number)


def write_stacks_on_signal() -> str:
    """Create the file for all stacks on STACKS_SIGNAL, written even if Python hangs; the engine removes the file."""
    folder = process.current_process()._config.get("tempdir")  # type: ignore[attr-defined]
    if folder is None:
        return ""
    path = os.path.join(folder, "stacks")
    faulthandler.register(STACKS_SIGNAL, open(path, "w"), all_threads=True)
    return path


def exit_process(code: int) -> None:
    """Exit like a script, with threads joined, exit handlers run and output flushed, but destroy nothing.

    Destroying a process group while a DDP model existed hung one worker in six.
    """
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)
    os._exit(code)
