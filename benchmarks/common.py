"""What the benchmarks share: contestants run as processes of their own, with a time limit; results as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # for the scenarios that tests and benchmarks share

PROGRAMS = Path(__file__).parent / "programs"
RESULTS = Path(__file__).parent / "results"


def run(command: Sequence[str], limit_s: float, **env: str) -> tuple[float | None, dict[str, list[float]], str]:
    """Run a command to its end: how long it took (None: it had to be killed), what it marked, what it said."""
    with tempfile.NamedTemporaryFile("r") as marked, tempfile.TemporaryFile() as output:
        began = time.time()
        environment = {**os.environ, "BENCH_T0": repr(began), "BENCH_MARKS": marked.name, **env}
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            process.wait(limit_s)
            took: float | None = time.time() - began
        except subprocess.TimeoutExpired:
            took = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        marks: dict[str, list[float]] = {}
        for line in marked:
            name, value = line.split()
            marks.setdefault(name, []).append(float(value))
        output.seek(0)
        return took, marks, output.read().decode(errors="replace")


def program(name: str) -> str:
    return str(PROGRAMS / f"{name}.py")


def torchrun(*args: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", *args]


def median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 6) if values else None


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if not ours or not theirs else round(ours / theirs, 4)


def at_most(limit: float, value: float | None) -> bool | None:
    return None if value is None else value <= limit


def at_least(limit: float, value: float | None) -> bool | None:
    return None if value is None else value >= limit


def publish(name: str, result: dict[str, Any], claims: dict[str, bool | None]) -> int:
    """Print the result and keep it; 1 if a claim does not hold. None: could not be checked here."""
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}
    text = json.dumps({"benchmark": name, **result, "claims": claims, "machine": machine}, indent=1)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    return 1 if False in claims.values() else 0
