"""Lines of ``metrics.jsonl``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headway.core.schema.metrics_lines import AttemptLine, ReportLine, attempt_line, metrics_line, report_line
from headway.core.schema.shape import ShapeError


def test_a_report_is_read_as_it_was_written() -> None:
    line = report_line(2, 1, 3, 1.5, b'{"loss":0.5}')
    assert line.endswith(b"\n")
    assert metrics_line(json.loads(line)) == ReportLine(rank=1, seq=3, metrics={"loss": 0.5}, attempt=2, time=1.5)


def test_the_beginning_of_an_attempt_is_read_as_it_was_written() -> None:
    assert metrics_line(json.loads(attempt_line(2, 3))) == AttemptLine(first_seq=3)


@pytest.mark.parametrize(
    "content", [None, [], {}, {"rank": 0, "seq": "1", "metrics": {}}, {"rank": 0, "seq": 1}, {"first_seq": "1"}]
)
def test_what_is_no_line_is_refused(content: Any) -> None:
    with pytest.raises(ShapeError):
        metrics_line(content)
