"""Epochs of one consumer, and what is left of one that was left early."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import headway.data
from data_examples import of


def test_two_iterators_of_one_dataset_do_not_meet() -> None:
    rows = headway.data.range(10)
    one, two = rows.iter_batches(batch_size=2), rows.iter_batches(batch_size=2)
    assert [a["id"].tolist() == b["id"].tolist() for a, b in zip(one, two, strict=True)] == [True] * 5


@pytest.mark.timeout(20)
def test_an_iterator_that_another_one_has_overtaken_does_not_hang() -> None:
    """Both are of one object: it may go on, end or be refused, but it must not wait for ever."""
    batches = headway.data.range(100).iter_batches(batch_size=2)
    one = iter(batches)
    next(one)
    two = iter(batches)
    next(two)
    done = threading.Event()

    def rest() -> None:
        try:
            for _ in one:
                pass
        except Exception:
            pass
        done.set()

    thread = threading.Thread(target=rest, daemon=True)
    thread.start()
    assert done.wait(5), "it hangs"
    thread.join()
    two.close()  # type: ignore[attr-defined]


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("headway-data")}


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize("filtered", [False, True])
def test_breaking_out_of_a_loop_leaves_no_thread(filtered: bool) -> None:
    made: list[int] = []

    def counted(batch: dict[str, Any]) -> dict[str, Any]:
        made.append(len(batch["id"]))
        return batch

    rows = headway.data.range(100_000, override_num_blocks=1000).map_batches(counted)
    rows = rows.filter(lambda row: True) if filtered else rows
    before = threads()
    for _ in range(40):
        for _batch in rows.iter_batches(batch_size=10):
            break
    for _row in rows.iter_rows():
        break
    next(iter(rows.iter_torch_batches()))
    assert threads() <= before
    assert sum(made) < 42 * 100_000 / 10, "nobody waits for what is not needed"


def test_after_a_break_the_next_epoch_begins() -> None:
    batches = headway.data.range(100).random_shuffle().iter_batches(batch_size=10)
    first = next(iter(batches))["id"].tolist()
    second = of(batches)
    assert sorted(second) == list(range(100))
    assert second[:10] != first


def test_an_iterator_that_is_never_iterated_starts_nothing() -> None:
    before = threads()
    headway.data.range(10).iter_batches()
    headway.data.range(10).iter_torch_batches()
    assert threads() <= before
