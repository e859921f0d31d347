"""Random states of Python, NumPy and torch, captured in every save and restored when a resumed epoch needs them.

A resumed function runs its code from the top, so states are restored twice. When the resumed epoch begins, they are
the states with which the epoch originally began. When its first loop gets its first batch, they are those of the save.
"""

from __future__ import annotations

import os
import random
from typing import Any

import numpy
import torch

States = dict[str, Any]


class RandomStates:
    """The random states of this process, and the saved states that must still be restored."""

    def __init__(self) -> None:
        self._at_epoch: States | None = None
        self._at_first_batch: States | None = None
        self._epoch_began_with: States | None = None

    def begin_epoch(self) -> None:
        """Begin an epoch, or the code after the last epoch."""
        states, self._at_epoch = self._at_epoch, None
        _set(states)
        self._epoch_began_with = _captured()

    def begin_first_batch(self) -> None:
        """Restore saved states before a loop gets its first batch."""
        states, self._at_first_batch = self._at_first_batch, None
        _set(states)

    def saved(self, *, in_loop: bool, in_epoch: bool) -> dict[str, Any]:
        """Return the current states, and the states with which the code that will run again began.

        Args:
            in_loop: Whether a loop over data will be continued.
            in_epoch: Whether code of this epoch, or after all epochs, will run again.
        """
        began_with = self._epoch_began_with if in_epoch else None
        return {"random": _captured(), "began_with": began_with, "in_loop": in_loop}

    def resume(self, saved: dict[str, Any]) -> None:
        """Restore saved states at the right times. Older saves do not record where they were made."""
        self._at_epoch = saved.get("began_with") or saved["random"]
        self._at_first_batch = saved["random"] if saved.get("in_loop", True) else None


def _captured() -> States:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    return {
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": cuda,
        "pid": os.getpid(),
    }


def _set(states: States | None) -> None:
    if states is None:
        return
    random.setstate(states["python"])
    numpy.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
