"""Metrics as JSON text: the quick way and the thorough way agree."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import MetricsError
from headway.worker.metrics import encode_metrics

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(st.dictionaries(st.text(), VALUES, max_size=5))
def test_what_goes_in_comes_out(metrics: dict[str, Any]) -> None:
    text = encode_metrics(metrics)
    assert json.loads(text) == metrics
    assert b"\n" not in text, "a report is a line"


@given(st.dictionaries(st.text(), st.integers() | st.floats(), max_size=5))
def test_the_quick_way_says_what_json_says(metrics: dict[str, Any]) -> None:
    assert encode_metrics(metrics).decode() == json.dumps(metrics, separators=(",", ":"))


def test_not_a_number_and_infinities_survive() -> None:
    found = json.loads(encode_metrics({"a": math.nan, "b": math.inf, "c": -math.inf}))
    assert math.isnan(found["a"])
    assert (found["b"], found["c"]) == (math.inf, -math.inf)


def test_numpy_is_plain_data_in_another_coat() -> None:
    metrics = {"f": numpy.float32(0.5), "d": numpy.float64(0.1), "i": numpy.int8(3), "b": numpy.bool_(True)}
    assert json.loads(encode_metrics({**metrics, "a": numpy.eye(2)})) == {
        "f": 0.5,
        "d": 0.1,
        "i": 3,
        "b": True,
        "a": [[1.0, 0.0], [0.0, 1.0]],
    }


def test_what_json_cannot_hold_is_named() -> None:
    with pytest.raises(MetricsError, match=r"metrics\['a/1'\] is a set"):
        encode_metrics({"a": [1, {2}]})
    with pytest.raises(MetricsError, match="dicts with string keys"):
        encode_metrics({(1, 2): 3})
