"""Batches in order, in threads, within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headway.data
from data_examples import Unlucky, of
from headway.data import DataError


@pytest.mark.usefixtures("four_threads")
def test_rows_keep_their_order_however_long_each_takes() -> None:
    def slow(batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(float(np.random.default_rng(int(batch["id"][0])).random()) / 200)
        return batch

    assert of(headway.data.range(300).map_batches(slow).iter_batches(batch_size=10)) == list(range(300))


def test_batches_of_the_remaining_rows_have_the_requested_size() -> None:
    odd = headway.data.range(100).filter(lambda row: row["id"] % 2)
    assert [len(batch["id"]) for batch in odd.iter_batches(batch_size=8)] == [8] * 6 + [2]
    assert [len(batch["id"]) for batch in odd.iter_batches(batch_size=8, drop_last=True)] == [8] * 6
    assert of(odd.iter_batches(batch_size=8)) == list(range(1, 100, 2))


def test_after_an_error_the_dataset_can_be_used_again() -> None:
    broken = [True]

    def sometimes(row: dict[str, Any]) -> dict[str, Any]:
        if broken and row["id"] == 5:
            raise Unlucky
        return row

    dataset = headway.data.range(10).map(sometimes)
    batches = dataset.iter_batches(batch_size=3)
    with pytest.raises(Unlucky):
        list(batches)
    broken.clear()
    assert [len(batch["id"]) for batch in batches] == [3, 3, 3, 1]


def test_a_function_that_makes_more_than_the_budget_is_stopped(budget: Callable[[int], None]) -> None:
    budget(4 << 20)
    dataset = headway.data.range(64).map(lambda row: {"x": np.zeros(1 << 17)})
    with pytest.raises(DataError, match=r"map\(.*produced 64 MiB from 64 rows.*budget of 4 MiB.*memory_budget_bytes"):
        list(dataset.iter_batches(batch_size=64))
    assert sum(len(batch["x"]) for batch in dataset.iter_batches(batch_size=2)) == 64, "smaller batches help"
