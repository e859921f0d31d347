"""What a worker is there to do: the user's own objects, which travel as one cloudpickle, opened as late as possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Task:
    """A call that is ready to be made, how its workers find together, and what the user wants them to know."""

    call: Callable[[], Any]
    backend: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    datasets: dict[str, Any] = field(default_factory=dict)
    any_value: bool = False  # whether the call may return what is too large, or too strange, for a result
