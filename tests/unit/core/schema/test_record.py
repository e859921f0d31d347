"""Records are written as JSON and read back, by the version that wrote them and by others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from headway.core.schema.record import Count, Number, Record
from headway.core.schema.shape import ShapeError


@dataclass(frozen=True, kw_only=True)
class Part(Record):
    name: str
    sizes: tuple[Count, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Whole(Record):
    seq: Number
    parts: dict[str, Part]
    pairs: tuple[tuple[float, float], ...] = ()
    newest: Part | None
    note: str | None = None
    anything: dict[str, object] | None = None


WHOLE = Whole(
    seq=3,
    parts={"a": Part(name="a", sizes=(1, 2))},
    pairs=((0.5, 2), (1, 3.5)),
    newest=None,
    anything={"x": [1, {"y": None}]},
)


def stored(record: Record) -> Any:
    return json.loads(json.dumps(record.to_json()))


def test_a_record_survives_json() -> None:
    assert Whole.from_json(stored(WHOLE)) == WHOLE


def test_fields_without_a_value_are_not_written_unless_readers_require_them() -> None:
    content = stored(WHOLE)
    assert "note" not in content
    assert content["newest"] is None


def test_fields_with_a_default_may_be_missing() -> None:
    assert Whole.from_json({"seq": 0, "parts": {"a": {"name": "a"}}, "newest": {"name": "b"}}) == Whole(
        seq=0, parts={"a": Part(name="a")}, newest=Part(name="b")
    )


def test_fields_of_a_newer_version_are_kept_and_written_back() -> None:
    content = {**stored(WHOLE), "later": [1, 2]}
    content["parts"]["a"]["colour"] = "red"
    record = Whole.from_json(content)
    assert record.parts["a"].unknown == {"colour": "red"}
    assert stored(record) == content


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seq": "3"}, "seq must be a whole number"),
        ({"seq": True}, "seq must be a whole number"),
        ({"seq": 1 << 63}, "seq must be between -1"),
        ({"parts": {"a": {}}}, r"name is missing in parts\['a'\]"),
        ({"parts": {"a": {"name": "a", "sizes": [-1]}}}, "sizes.*must be between 0"),
        ({"pairs": [[1]]}, "a list of 2"),
        ({"newest": 1}, "newest must be an object"),
        ({"note": 1}, "note must be a string"),
        ({"anything": []}, "anything must be an object"),
    ],
)
def test_what_has_another_shape_is_refused_with_its_name(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ShapeError, match=reason):
        Whole.from_json({**stored(WHOLE), **change})


def test_what_is_no_object_is_refused() -> None:
    for content in (None, 3, [], "x"):
        with pytest.raises(ShapeError):
            Whole.from_json(content)
