"""The map of rows is true: every test it names exists, every row has its place, and the page says the same."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from parity import PAGE, page
from rows import SETTLED, SHOWN, WAITING
from what import WHAT

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("row", SHOWN)
def test_the_test_that_shows_a_row_exists(row: str) -> None:
    path, _, name = SHOWN[row].partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_is_shown_waits_or_is_settled() -> None:
    assert list(WHAT) == [f"S{number}" for number in range(1, 201)]
    places = [*(row for row in SHOWN if row.startswith("S")), *WAITING, *SETTLED]
    assert len(places) == len(set(places))
    assert set(places) == set(WHAT)


def test_the_page_says_the_same() -> None:
    assert PAGE.read_text() == page(), "run: python tests/seeds/parity.py"
