"""Data cursors: the position of a run in its training data, as contained in reports and manifests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from headway.core.schema.record import Record
from headway.core.schema.shape import ShapeError


@dataclass(frozen=True, kw_only=True)
class DatasetPosition(Record):
    """Position of one rank in one dataset.

    Args:
        epoch: Number of the pass over the data, from 0.
        rows: Number of rows at the start of the epoch's order that are consumed.
        skip: Number of further consumed rows, after those.
        done: Whether the epoch has ended.
        lanes: Number of lanes of the order.
        window: Size of the order's shuffle window.
        local: Buffer sizes and seeds of the local shuffle; None if there is none.
        files: Fingerprint of the files, their shuffling and their filters.
        crosses: Whether a pass continues in the next epoch; None if unknown.
        unknown: Fields that only newer versions know.
    """

    epoch: int
    rows: int
    skip: int
    done: bool
    lanes: int
    window: int
    local: list[object] | None
    files: str
    crosses: bool | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetCursor(Record):
    """Position of all ranks in one dataset.

    Args:
        position: The position of every rank, if all ranks have the same.
        positions: One position for each rank, if they differ; None if some ranks did not report theirs.
        unknown: Fields that only newer versions know.
    """

    position: DatasetPosition | None = None
    positions: tuple[DatasetPosition | None, ...] | None = None

    def __post_init__(self) -> None:
        if self.position is not None and self.positions is not None:
            raise ShapeError("it has one position and several")

    def to_json(self) -> dict[str, Any]:
        return super().to_json() if self.position is not None else {"positions": None, **super().to_json()}

    @classmethod
    def from_json(cls, content: Any, name: str = "") -> Self:
        found = super().from_json(content, name)
        if not content.keys() & {"position", "positions"}:
            raise ShapeError(f"positions is missing{name and f' in {name}'}")
        return found

    @property
    def known(self) -> tuple[DatasetPosition, ...]:
        """The positions that are known."""
        found = (self.position,) if self.position is not None else self.positions or ()
        return tuple(position for position in found if position is not None)


@dataclass(frozen=True, kw_only=True)
class DataCursor(Record):
    """Position of a checkpoint in the training data.

    Args:
        epoch: Number of the epoch.
        over: Whether the epoch has ended.
        batches: Number of batches of the epoch that each tracked loader returned.
        datasets: The :class:`DatasetCursor` of each dataset, by name, as JSON. It is only checked when a run is
            resumed, so that a damaged cursor does not hide the checkpoint.
        unknown: Fields that only newer versions know.
    """

    epoch: int | None = None
    over: bool | None = None
    batches: dict[str, int] | None = None
    datasets: dict[str, object] | None = None

    def of_datasets(self) -> dict[str, DatasetCursor]:
        """Return the cursors of the datasets, by name. Raises ShapeError if one is damaged."""
        return {name: DatasetCursor.from_json(cursor, name) for name, cursor in (self.datasets or {}).items()}


def merged(reports: Sequence[bytes]) -> dict[str, DatasetCursor]:
    """Return the cursor of each dataset in a round of reports.

    Args:
        reports: For each rank, the :class:`DatasetPosition` of each dataset by name, as JSON; empty if it has none.
    """
    told = [json.loads(positions) for positions in reports if positions]
    names = dict.fromkeys(name for positions in told for name in positions)
    return {name: _merged([each.get(name) for each in told], whole=len(told) == len(reports)) for name in names}


def _merged(positions: Sequence[Any], *, whole: bool) -> DatasetCursor:
    if all(position == positions[0] for position in positions):
        return DatasetCursor(position=DatasetPosition.from_json(positions[0]))
    if not whole:
        return DatasetCursor()
    return DatasetCursor(
        positions=tuple(None if position is None else DatasetPosition.from_json(position) for position in positions)
    )
