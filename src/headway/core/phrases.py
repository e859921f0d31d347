"""Wording of numbers, ranks, durations, sizes and exits in messages."""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from headway.core.messages import WorkerExited


def ranks(numbers: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0 and 1``, ``ranks 0-3, 6 and 7``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [part for run in runs for part in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))]
    if len(parts) == 1 and len(runs[0]) == 1:
        return f"rank {parts[0]}"
    return "ranks " + (parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}")


def ranks_are(numbers: Collection[int]) -> str:
    """``rank 3 is``, ``ranks 0 and 1 are``."""
    return f"{ranks(numbers)} {'is' if len(numbers) == 1 else 'are'}"


def death(exited: WorkerExited, *, several: bool = False) -> str:
    """Describe how a process ended that did not finish, or how several processes ended in the same way."""
    was, its = ("were", "their functions") if several else ("was", "its function")
    code = exited.code
    if exited.reason or code is None:
        return re.sub(r"^was\b", was, exited.reason) or "vanished"
    if code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
        if -code != signal.SIGKILL or exited.out_of_memory is False:
            return f"{was} killed ({name})"
        return (
            f"{was} killed by the kernel: out of memory"
            if exited.out_of_memory
            else f"{was} killed ({name}, out of memory?)"
        )
    return f"exited with code {code} before {its} returned"


def metrics(values: dict[str, Any], limit: int = 5) -> str:
    """The first few values of a report, as short text."""
    shown = [f"{key}={_short(value)}" for key, value in flat(values).items() if isinstance(value, int | float | str)]
    return " ".join(shown[:limit])


def flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested metrics as one dict with paths as names: ``{"val": {"acc": 1}}`` becomes ``{"val/acc": 1}``."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{above}{key}/") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return shortened(str(value), 20)


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"


def clock(seconds: float) -> str:
    """A timestamp as text, in local time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):  # out of range, from a damaged file
        return "an unknown time"


def count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def a_kind(value: object) -> str:
    """The type of a value, with its article: ``an int``, ``a dict``, ``None``."""
    if value is None:
        return "None"
    name = type(value).__qualname__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def size(num_bytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def encodable(text: str) -> str:
    """The text with lone surrogates escaped; these occur in file names that are not UTF-8."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
