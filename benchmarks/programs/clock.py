"""The clock of the contestants: marks go to a file, because not every launcher lets a print through."""

import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests/scenarios/programs"))

from step_marks import Count as Count
from step_marks import stepping as stepping


def mark(name: str, value: float | None = None) -> None:
    """Note a value, or the time since the interpreter was started."""
    value = time.time() - float(os.environ["BENCH_T0"]) if value is None else value
    with open(os.environ["BENCH_MARKS"], "a") as file:
        file.write(f"{name} {value}\n")
