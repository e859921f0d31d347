"""Marks of finished steps in a file, and a step counter that a run can track."""

import os
import time
from collections.abc import Callable


def stepping(rank: int) -> Callable[[int], None]:
    """Mark the start of a training function as step -1; return a function that marks the end of each step."""
    file = open(os.environ["BENCH_MARKS"], "a", buffering=1)

    def note(step: int) -> None:
        file.write(f"{rank} {os.getpid()} {step} {time.time()}\n")

    note(-1)
    return note


class Count:
    """The number of the next step: an object of the user that is tracked."""

    def __init__(self) -> None:
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]
