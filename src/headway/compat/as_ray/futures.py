"""Futures of a Headway worker group's methods, for ``ray.get`` and ``ray.wait``."""

from __future__ import annotations

import concurrent.futures
import time
from typing import Any


def first_of(refs: Any, num_returns: int = 1, timeout: float | None = None, **options: Any) -> tuple[Any, Any]:
    """Implement ``ray.wait`` for Headway's futures."""
    ends = None if timeout is None else time.monotonic() + timeout
    while sum(ref.done() for ref in refs) < num_returns:
        left = None if ends is None else ends - time.monotonic()
        if left is not None and left <= 0:
            break
        pending = [ref for ref in refs if not ref.done()]
        concurrent.futures.wait(pending, left, return_when=concurrent.futures.FIRST_COMPLETED)
    ready = [ref for ref in refs if ref.done()][:num_returns]
    return ready, [ref for ref in refs if ref not in ready]


def are_headway_futures(refs: Any) -> bool:
    """Whether the argument is a future of a Headway worker group, or a list of such futures."""
    found = refs if isinstance(refs, list | tuple) else [refs]
    return bool(found) and all(isinstance(ref, concurrent.futures.Future) for ref in found)


def waited(refs: Any, timeout: float | None) -> Any:
    return [ref.result(timeout) for ref in refs] if isinstance(refs, list | tuple) else refs.result(timeout)
