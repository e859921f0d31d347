"""Positions in the training data: of one rank, of all, and in manifests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headway.core.schema.data_cursor import DataCursor, DatasetCursor, DatasetPosition, merged
from headway.core.schema.shape import ShapeError


def position(rows: int = 4) -> DatasetPosition:
    return DatasetPosition(epoch=1, rows=rows, skip=0, done=False, lanes=2, window=1, local=None, files="f")


def told(**positions: DatasetPosition) -> bytes:
    return json.dumps({name: each.to_json() for name, each in positions.items()}).encode()


def test_ranks_at_one_place_have_one_position() -> None:
    assert merged([told(train=position()), told(train=position())]) == {"train": DatasetCursor(position=position())}


def test_ranks_at_different_places_have_one_each() -> None:
    assert merged([told(train=position(4)), told(train=position(5))]) == {
        "train": DatasetCursor(positions=(position(4), position(5)))
    }
    assert merged([told(train=position()), told(other=position())])["train"].positions == (position(), None)


def test_different_places_are_unknown_where_a_rank_has_not_told_its_own() -> None:
    assert merged([told(train=position(4)), b"", told(train=position(5))]) == {"train": DatasetCursor()}
    assert merged([told(train=position(4)), b""]) == {"train": DatasetCursor(position=position(4))}


def test_without_datasets_there_is_no_cursor() -> None:
    assert merged([b"", b""]) == {}


@pytest.mark.parametrize(
    "cursor",
    [DatasetCursor(position=position()), DatasetCursor(positions=(position(1), None)), DatasetCursor()],
)
def test_a_cursor_survives_json(cursor: DatasetCursor) -> None:
    assert DatasetCursor.from_json(json.loads(json.dumps(cursor.to_json()))) == cursor


@pytest.mark.parametrize("content", [None, {}, {"position": {"epoch": 1}}, {"positions": [3]}, {"positions": 3}])
def test_what_is_no_cursor_is_refused(content: Any) -> None:
    with pytest.raises(ShapeError):
        DatasetCursor.from_json(content)


def test_a_damaged_cursor_of_a_dataset_is_found_where_it_is_used() -> None:
    cursor = DataCursor.from_json({"epoch": 2, "datasets": {"train": {"position": 3}}})
    assert cursor.epoch == 2
    with pytest.raises(ShapeError, match=r"train\.position must be an object"):
        cursor.of_datasets()
