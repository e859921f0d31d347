"""Passes over tracked data: which passes an epoch has completed, and where training can be resumed exactly. Pure.

A resumed function runs its code from the top, and every loader and dataset continues where it was. Nothing is repeated
or omitted only at two kinds of points:

    for epoch in state.epochs(9):
        for batch in loader:        ◀ the epoch's first pass requests its next batch, or ends
            ...
        for batch in validation:      inside a later pass: the code between the passes would run twice
            ...
                                    ◀ the epoch ends

The state that a report must save is therefore captured at the next of these points, and the report waits for it.
"""

from __future__ import annotations

from collections.abc import Hashable


class Passes:
    """The passes of this epoch. ``leading`` is the loader or dataset of the first pass."""

    def __init__(self) -> None:
        self._known: set[Hashable] = set()
        self._running: set[Hashable] = set()
        self._finished: list[Hashable] = []  # passes finished in this epoch, in order
        self._left: set[Hashable] = set()  # running since an earlier epoch and not used in this one
        self._inner: set[Hashable] = set()  # begun since the leading pass yielded its last batch
        self._leading: Hashable | None = None
        self._leading_over = False
        self._in_epochs = False
        self.all_over = False  # whether all epochs have ended

    def know(self, name: Hashable) -> None:
        """Add a loader or dataset; it need not be used."""
        self._known.add(name)

    # --- what happens ---

    def begin_epoch(self) -> None:
        self._in_epochs, self.all_over = True, False
        self._left = set(self._running)
        self._reset()

    def end_epochs(self) -> None:
        self.all_over = True

    def begin(self, name: Hashable) -> bool:
        """Record that a pass begins or continues. True if it begins a new epoch: training can be resumed from here."""
        self._known.add(name)
        again = not self._in_epochs and self._leading == name and self._leading_over
        if again:
            self._reset()
        if self._leading is None:
            self._leading = name
        else:
            self._inner.add(name)
        self._running.add(name)
        return again

    def ask(self, name: Hashable, *, last: bool = False) -> bool:
        """Record a request for the next batch; ``last``: there is none. True if training can be resumed from here."""
        self._left.discard(name)
        if self._leading is None:  # this pass began in the previous epoch
            self._leading = name
            return False
        if name != self._leading or self._leading_over:
            return False
        self._inner.clear()  # passes that still run are advanced together with the leading pass
        # ``zip`` ends with its first iterator. Resumed after that end, the other passes would not have ended.
        return not last or self._running == {name}

    def end(self, name: Hashable) -> None:
        self._running.discard(name)
        if name in self._left:  # a pass of the previous epoch whose iterator was dropped
            self._left.discard(name)
            return
        self._finished.append(name)
        self._leading_over |= name == self._leading

    # --- what is known ---

    @property
    def leading(self) -> Hashable | None:
        """The loader or dataset of the first pass in this epoch."""
        return self._leading

    @property
    def expects_more(self) -> bool:
        """Whether this epoch will reach another point from which training can be resumed exactly."""
        return bool(self._known) and not self.all_over and (self._in_epochs or self._leading is not None)

    @property
    def finished(self) -> tuple[Hashable, ...]:
        """The finished passes of this epoch, in order."""
        return tuple(self._finished)

    @property
    def epoch_over(self) -> bool:
        """Whether this epoch has ended, as far as can be known before the next one begins."""
        if not self._known:
            return self._in_epochs
        return self._in_epochs and self._leading_over

    @property
    def resumable(self) -> bool:
        """Whether training can be resumed from here, provided that no code of this epoch or batch follows."""
        if self._leading is None or self.all_over:
            return True
        if not self._leading_over:
            return not self._inner & self._running
        return not self._in_epochs or (not self._running and self._known <= set(self._finished))

    @property
    def accompanied(self) -> bool:
        """Whether other passes are advanced together with the leading one, which may be at its last batch."""
        return self._leading in self._running and len(self._running) > 1

    def _reset(self) -> None:
        self._leading, self._leading_over = None, False
        self._finished.clear()
        self._inner.clear()
