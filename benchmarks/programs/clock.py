"""The clock of the contestants: marks go to a file, because not every launcher lets a print through."""

import os
import time


def mark(name: str, value: float | None = None) -> None:
    """Note a value, or the time since the interpreter was started."""
    value = time.time() - float(os.environ["BENCH_T0"]) if value is None else value
    with open(os.environ["BENCH_MARKS"], "a") as file:
        file.write(f"{name} {value}\n")
