"""Conditions as text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headway.data
from headway.data import DataError
from headway.data.operations.filter_expression import expression_of


@pytest.mark.parametrize("expr", ["id >", "id = 3", "__import__('os')", "id in other", "id[0] > 1", "-id > 3", 5])
def test_a_condition_that_is_none_is_refused_at_once(expr: Any) -> None:
    with pytest.raises(DataError, match=r"(?i)condition|expr"):
        headway.data.range(3).filter(expr=expr)


TABLE = pa.table({"age": [15, 20, 30], "name": ["a", "b", "c"], "x": [1.5, -2.0, None]})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("age >= 20", "bc"),
        ("age != 20", "ac"),
        ("15 < age <= 30", "bc"),
        ("age > 15 and name == 'c'", "c"),
        ("age < 16 or name in ['c', 'd']", "ac"),
        ("not name == 'b'", "ac"),
        ("name not in ['a', 'b']", "c"),
        ("x == -2.0", "b"),
        ("age * 2 - 10 > x + 25", "b"),
        ("age / 2 == 7.5", ""),
    ],
)
def test_a_text_means_what_python_would_mean(text: str, names: str) -> None:
    assert "".join(TABLE.filter(expression_of(text)).column("name").to_pylist()) == names


def test_an_expression_of_arrow_is_taken_as_it_is() -> None:
    expression = pc.field("age") > 15
    assert expression_of(expression) is expression


@pytest.mark.parametrize("text", ["__import__('os')", "name.upper() == 'A'", "[age]", "age is 3", "age >", "lambda: 1"])
def test_a_text_is_never_executed(text: str) -> None:
    with pytest.raises(DataError, match=r"condition|comparing"):
        expression_of(text)
