"""What a pipeline has done, in words."""

from __future__ import annotations

from typing import Any

import headway.data


def test_stats_tell_what_was_done() -> None:
    def doubled(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"] * 2}

    rows = headway.data.range(500).map(doubled)
    assert rows.stats() == "nothing has been read yet"
    rows.take_all()
    first, source, step, *_ = rows.stats().splitlines()
    assert first.startswith("500 rows in ")
    assert source.startswith("  range(500): 500 rows in ")
    assert step.startswith("  map(doubled): 500 rows in ")
