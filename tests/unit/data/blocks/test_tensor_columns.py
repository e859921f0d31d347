"""Arrays of any shape as columns."""

from __future__ import annotations

import numpy as np

import headway.data


def test_arrays_of_different_shapes_can_be_kept_and_collected() -> None:
    """More of them than fit into one chunk; the first chunk has one shape only."""
    rows = headway.data.range(3000).map(lambda row: {"x": np.full(1 + row["id"] // 1024, row["id"])})
    expected = [1 + n // 1024 for n in range(3000)]
    assert [len(row["x"]) for row in rows.take_all()] == expected
    assert [len(value) for value in rows.to_pandas()["x"]] == expected
    assert [len(row["x"]) for row in rows.materialize().take_all()] == expected
    assert rows.to_arrow().num_rows == 3000


def test_arrays_of_different_shapes_meet_in_a_shuffled_batch() -> None:
    rows = headway.data.from_items([{"n": n, "x": np.full(1 + n % 3, n)} for n in range(30)], override_num_blocks=5)
    for row in rows.random_shuffle(seed=1).take_all():
        assert row["x"].tolist() == [row["n"]] * (1 + row["n"] % 3)
    assert [len(row["x"]) for row in rows.filter(expr="n > 10").take_all()] == [1 + n % 3 for n in range(11, 30)]


def test_objects_that_no_column_can_hold_go_through() -> None:
    rows = headway.data.range(3).map(lambda row: {"id": row["id"], "o": {row["id"], "x"}})
    assert [row["o"] for row in rows.materialize().take_all()] == [{n, "x"} for n in range(3)]
