"""Shape checks of values from files."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.schema.shape import COUNT, MAX_DEPTH, NUMBER, ShapeError, Values, conform

RUN = {
    "format": int,
    "created": NUMBER,
    "openings": [{"?code": frozenset({str, None})}],
    "?sizes": Values(int),
    "?ranks": COUNT,
}


@pytest.mark.parametrize(
    "value",
    [
        {"format": 1, "created": 1.5, "openings": []},
        {"format": 1, "created": 1, "openings": [{}, {"code": None}, {"code": "x", "more": 1}], "sizes": {"a": 1}},
    ],
)
def test_a_value_of_the_right_shape_conforms(value: Any) -> None:
    try:
        conform(value, RUN)
    except ShapeError as error:
        pytest.fail(str(error))


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"format": "1"}, "format must be a whole number, got '1'"),
        ({"format": True}, "format must be a whole number, got True"),
        ({"created": None}, "created must be a number, got null"),
        ({"openings": {}}, "openings must be a list, got an object"),
        ({"openings": [3]}, r"openings\[0\] must be an object, got 3"),
        ({"openings": [{"code": 3}]}, r"openings\[0\].code must be a string or null, got 3"),
        ({"sizes": {"a": "b"}}, r"sizes\['a'\] must be a whole number, got 'b'"),
        ({"created": "x" * 1000}, "created must be a number, got 'xxxx.*…"),
        ({"ranks": 10**12}, "ranks must be between 0 and 1000000, got 1000000000000"),
        ({"ranks": 10**100}, "ranks must be between 0 and 1000000, got a huge number"),
    ],
)
def test_what_has_not_is_named(change: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ShapeError, match=wrong):
        conform({"format": 1, "created": 1.5, "openings": [], **change}, RUN)


@pytest.mark.parametrize(("depth", "fine"), [(100, True), (MAX_DEPTH, True), (MAX_DEPTH + 1, False), (900, False)])
def test_what_is_nested_too_deep_has_no_shape(depth: int, fine: bool) -> None:
    """Copying or printing such a value recursively would exhaust the stack; metrics have at most 100 levels."""
    value: Any = 1
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    if fine:
        conform(value, object)
    else:
        with pytest.raises(ShapeError, match="nested more than"):
            conform(value, object)


@pytest.mark.parametrize("value", [3, None, [], "x", {}])
def test_whatever_it_is_only_a_shape_error_comes_out(value: Any) -> None:
    with pytest.raises(ShapeError):
        conform(value, RUN)
