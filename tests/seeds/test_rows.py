"""The map of rows is true: every test it names exists, and no row is both shown and open."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from rows import OPEN, SHOWN

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("row", SHOWN)
def test_the_test_that_shows_a_row_exists(row: str) -> None:
    path, _, name = SHOWN[row].partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_no_row_is_both_shown_and_open() -> None:
    assert not SHOWN.keys() & OPEN.keys()
