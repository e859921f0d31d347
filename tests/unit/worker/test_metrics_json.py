"""Metrics as JSON text: the fast path and the thorough one agree."""

from __future__ import annotations

import json
import math
import os
import types
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import MetricsError
from headway.worker.metrics_json import encode_metrics, refuse_tensors

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(st.dictionaries(st.text(), VALUES, max_size=5))
def test_metrics_are_equal_when_read_back(metrics: dict[str, Any]) -> None:
    text = encode_metrics(metrics)
    assert json.loads(text) == metrics
    assert b"\n" not in text, "a report is a line"


@given(st.dictionaries(st.text(), st.integers() | st.floats(), max_size=5))
def test_the_fast_path_writes_what_json_writes(metrics: dict[str, Any]) -> None:
    assert encode_metrics(metrics).decode() == json.dumps(metrics, separators=(",", ":"))


def test_not_a_number_and_infinities_survive() -> None:
    found = json.loads(encode_metrics({"a": math.nan, "b": math.inf, "c": -math.inf}))
    assert math.isnan(found["a"])
    assert (found["b"], found["c"]) == (math.inf, -math.inf)


def test_numpy_values_are_written_as_plain_data() -> None:
    metrics = {"f": numpy.float32(0.5), "d": numpy.float64(0.1), "i": numpy.int8(3), "b": numpy.bool_(True)}
    assert json.loads(encode_metrics({**metrics, "a": numpy.eye(2)})) == {
        "f": 0.5,
        "d": 0.1,
        "i": 3,
        "b": True,
        "a": [[1.0, 0.0], [0.0, 1.0]],
    }


def test_a_value_that_json_cannot_hold_is_named() -> None:
    with pytest.raises(MetricsError, match=r"metrics\['a/1'\] is a set"):
        encode_metrics({"a": [1, {2}]})
    with pytest.raises(MetricsError, match="dicts with string keys"):
        encode_metrics({(1, 2): 3})


def nested(depth: int, container: type) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if container is list else {"a": value}
    return value


@pytest.mark.parametrize("container", [dict, list])
@pytest.mark.parametrize("depth", [101, 1500, 5000])
def test_a_deep_nesting_is_refused_with_its_key(container: type, depth: int) -> None:
    with pytest.raises(MetricsError, match=r"metrics\['tree/.*…'\] is nested more than 100 deep: flatten it") as caught:
        encode_metrics({"loss": 1.0, "tree": nested(depth, container)})
    assert len(str(caught.value)) < 200


def test_what_is_not_refused_can_be_read_back_from_deep_in_a_program() -> None:
    text = encode_metrics({"tree": nested(99, dict)})

    def read(depth: int) -> Any:
        return json.loads(text) if depth == 0 else read(depth - 1)

    assert read(500) == {"tree": nested(99, dict)}


def test_a_container_in_itself_is_refused_with_its_key() -> None:
    endless: dict[str, Any] = {"x": 1}
    endless["self"] = endless
    twice: list[Any] = [1]
    twice += [twice, twice]
    for metrics in ({"a": endless}, {"a": twice}, endless):
        with pytest.raises(MetricsError, match=r"metrics\['(a|self)/.*'\] contains itself"):
            encode_metrics(metrics)


def test_a_container_in_two_places_is_no_cycle() -> None:
    shared = {"x": 1}
    assert json.loads(encode_metrics({"a": shared, "b": [shared, shared]})) == {"a": shared, "b": [shared, shared]}


def test_keys_that_json_would_change_are_named() -> None:
    with pytest.raises(MetricsError, match=r"metrics\['per class'\] has the key \(1, 2\), a tuple"):
        encode_metrics({"per class": {(1, 2): 3}})
    with pytest.raises(MetricsError, match=r"metrics has the key .*, a numpy.int64"):
        encode_metrics({numpy.int64(1): 3})
    with pytest.raises(
        MetricsError, match=r"metrics\['per class'\] has the keys 1 and '1', which are the same as text"
    ):
        encode_metrics({"per class": {1: 0.1, "1": 0.2}})


def test_plain_keys_become_text() -> None:
    assert json.loads(encode_metrics({0: 0.5, True: 1, None: 2, "x": 3})) == {"0": 0.5, "true": 1, "null": 2, "x": 3}


@pytest.mark.parametrize("number", [10**300, -(10**400), 10**5000], ids=["large", "negative", "huge"])
def test_an_integer_that_no_float_could_hold_is_refused_with_its_key(number: int) -> None:
    for metrics in ({"big": number}, {"big": number, "text": ""}, {"big": number, "nested": {}}):
        with pytest.raises(MetricsError, match=r"metrics\['big'\] is too large an integer: report it as a string"):
            encode_metrics(metrics)
    assert json.loads(encode_metrics({"big": 2**200})) == {"big": 2**200}


def test_mappings_of_other_kinds_are_dicts() -> None:
    assert json.loads(encode_metrics({"a": types.MappingProxyType({"b": 1})})) == {"a": {"b": 1}}


def test_metrics_that_are_too_large_are_refused_with_the_largest_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headway.worker.metrics_json.MAX_BYTES", 2 << 20)
    with pytest.raises(
        MetricsError, match=r"the metrics are 3 MiB of text, at most 2 are kept: save metrics\['text'\]"
    ):
        encode_metrics({"loss": 1.0, "text": ["x" * (3 << 20)]})


def test_text_that_is_not_unicode_survives() -> None:
    name = os.fsdecode(b"caf\xe9.png")
    assert json.loads(encode_metrics({"worst": name, name: 1})) == {"worst": name, name: 1}


def test_a_return_value_that_contains_itself_is_searched_for_tensors_once() -> None:
    value: list[Any] = [1]
    value.append(value)
    refuse_tensors(value)
    value.append(torch.ones(1))
    with pytest.raises(MetricsError, match=r"the training function returned a torch.Tensor\['2'\]"):
        refuse_tensors(value)
