"""Verdicts: which rank is to blame, and for what, from stacks, process states and numbers alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.core.messages import FOR_RANKS, Frame, Heartbeat, Wait, WaitOperation
from headway.diagnosis.activity import WAITS
from headway.diagnosis.verdict import Rank, Sample, diagnose

TRAIN = Frame("/home/you/train.py", 31, "train_func")
BACKWARD = Frame("/site/torch/autograd/graph.py", 979, "_engine_run_backward", users=False)
WRAPPER = Frame("/site/torch/distributed/c10d_logger.py", 83, "wrapper", users=False)
ALL_REDUCE = Frame("/site/torch/distributed/distributed_c10d.py", 3000, "all_reduce", users=False)
BROADCAST = Frame("/site/torch/distributed/distributed_c10d.py", 2900, "broadcast", users=False)
INSIDE = Frame("/src/headway/worker/requests.py", 74, "wait", users=False)  # a Headway call
IN_BARRIER = Wait(operation="barrier", since=0.0)
FOR_BATCH = Wait(operation="batch", since=0.0)
FETCH = Frame("/src/headway/storage/object_store/download_cache.py", 40, "fetch", users=False)
LOCK = Frame("/lib/python3.11/threading.py", 355, "wait", users=False, hint="lock")

CONVERT = Frame("/site/torch/_dynamo/convert_frame.py", 1300, "__call__", users=False)
IMPORT = Frame("<frozen importlib._bootstrap>", 1176, "_find_and_load", users=False)

REPORTS = {"silent": False, "reporting": True}
COMPILING = (TRAIN, CONVERT)
IMPORTING = (TRAIN, IMPORT)
IN_BACKWARD = (TRAIN, BACKWARD)
IN_ALL_REDUCE = (TRAIN, WRAPPER, ALL_REDUCE)
IN_BROADCAST = (TRAIN, WRAPPER, BROADCAST)


def rank(
    number: int,
    *stacks: tuple[Frame, ...],
    cpu: float = 0.0,
    threads: float = 0.0,
    tree: float = 0.0,
    delay: float = 0.0,
    state: str = "S",
    answered: bool = True,
    silent: bool = True,
    over: bool = False,
    reporting: bool = False,
    left_behind: bool = False,
    **pulse: Any,
) -> Rank:
    """Return a rank with three samples, a second apart; a single stack means that it did not move.

    ``cpu``, ``threads`` and ``tree`` are the shares of a core used by its main thread, by its other threads and by
    processes that it started; ``delay`` is the share of the time in which its main thread waits for a core.
    """
    seen = stacks * 3 if len(stacks) == 1 else stacks or ((),) * 3
    every = cpu + threads + delay
    samples = tuple(
        Sample(state, cpu * i, every * i, float(i), stack, answered, delay * i, (every + tree) * i)
        for i, stack in enumerate(seen)
    )
    return Rank(number, silent, samples, Heartbeat(**pulse), over, None, reporting, left_behind)


def at(function: str, hint: str = "", file: str = "/home/you/train.py") -> tuple[Frame, ...]:
    return (TRAIN, Frame(file, 12, function, users=file.startswith("/home"), hint=hint))


BLAMED = {
    "lock": rank(1, at("load", "lock")),
    "sleep": rank(1, at("nap", "sleep")),
    "io": rank(1, at("read", "io")),
    "child": rank(1, at("wait", file="/lib/python3.11/subprocess.py")),
    "loader": rank(1, at("__next__", file="/site/torch/utils/data/dataloader.py")),
    "busy": rank(1, at("spin"), cpu=1.0),
    "slow": rank(1, at("sort"), at("multiply"), at("sort"), cpu=1.0),
    "stopped": rank(1, at("spin"), state="T"),
    "dead": rank(1, state="Z"),
    "blocked": rank(1, at("something")),
}


@pytest.mark.parametrize("fault", BLAMED)
def test_the_rank_that_does_not_wait_is_blamed(fault: str) -> None:
    found = diagnose([rank(0, IN_BACKWARD, common=8), BLAMED[fault]])
    assert found is not None
    assert (found.fault, found.ranks) == (fault, (1,))
    assert "rank 0 waits in backward (all-reduce of gradients) (called in train_func (train.py:31))" in found.text


def test_of_several_ranks_that_do_not_wait_the_one_furthest_behind_is_blamed() -> None:
    waiting = rank(0, IN_ALL_REDUCE, common=9)
    found = diagnose([waiting, rank(1, at("load", "lock"), common=7), rank(2, at("nap", "sleep"), common=8)])
    assert found is not None
    assert (found.fault, found.ranks) == ("lock", (1,))


def test_a_rank_in_another_collective_than_the_majority_is_to_blame() -> None:
    found = diagnose([rank(0, IN_ALL_REDUCE), rank(1, IN_BROADCAST), rank(2, IN_ALL_REDUCE)])
    assert found is not None
    assert (found.fault, found.ranks) == ("mismatch", (1,))
    assert "rank 1 in broadcast" in found.text


def test_two_ranks_in_different_collectives_are_both_blamed() -> None:
    found = diagnose([rank(0, IN_ALL_REDUCE), rank(1, IN_BROADCAST)])
    assert found is not None
    assert (found.fault, found.ranks) == ("mismatch", (0, 1))
    assert "in different operations" in found.text


def test_the_same_collective_another_number_of_times_is_a_mismatch_too() -> None:
    found = diagnose([rank(0, IN_ALL_REDUCE, common=12), rank(1, IN_ALL_REDUCE, common=11)])
    assert found is not None
    assert (found.fault, found.ranks) == ("mismatch", (1,))


def test_a_rank_that_has_finished_while_others_wait_had_fewer_batches() -> None:
    found = diagnose([rank(0, IN_BACKWARD, batches=13), rank(1, over=True, batches=12)])
    assert found is not None
    assert (found.fault, found.ranks) == ("uneven", (1,))
    assert "batches taken: rank 0 13, rank 1 12" in found.text


def test_a_rank_in_another_collective_after_fewer_batches_is_uneven_not_a_mismatch() -> None:
    found = diagnose([rank(0, IN_BACKWARD, batches=13, common=40), rank(1, IN_BROADCAST, batches=12, common=40)])
    assert found is not None
    assert (found.fault, found.ranks) == ("uneven", (1,))


def test_all_in_the_same_collective_that_does_not_end() -> None:
    found = diagnose([rank(0, IN_ALL_REDUCE, common=5), rank(1, IN_ALL_REDUCE, common=5)])
    assert found is not None
    assert (found.fault, found.ranks) == ("collective", (0, 1))


QUIET = {
    "one that computes, and nobody waits for it": [rank(0, at("fit"), cpu=1.0)],
    "all compute": [rank(0, at("fit"), cpu=1.0), rank(1, at("fit"), cpu=0.9)],
    "one that moves": [rank(0, at("a", "sleep"), at("b"), at("a"))],
    "a phase": [rank(0, IN_ALL_REDUCE), rank(1, at("nap", "sleep"), phase="tokenise")],
    "one that gets on, and the others wait for it": [rank(0, IN_ALL_REDUCE), rank(1, at("x"), silent=False)],
    "all at our own barrier": [
        rank(0, (TRAIN, INSIDE), wait=IN_BARRIER, meetings=3),
        rank(1, (TRAIN, INSIDE), wait=IN_BARRIER, meetings=3),
    ],
    "a checkpoint is read": [rank(0, IN_ALL_REDUCE), rank(1, (TRAIN, FETCH, LOCK))],
    "a checkpoint is read through the user's own files": [rank(0, (TRAIN, FETCH, Frame("/home/you/fs.py", 1, "open")))],
    "all must have a batch, and one is in a phase": [
        rank(0, (TRAIN, INSIDE, LOCK), wait=FOR_BATCH, in_loader=True),
        rank(1, at("nap", "sleep"), phase="evaluate"),
    ],
    "all have finished": [rank(0, over=True), rank(1, over=True)],
    "a rank alone, whose device works through a long backward": [rank(0, IN_BACKWARD)],
    "backward, and other threads of theirs compute": [
        rank(0, IN_BACKWARD, threads=0.9, common=3),
        rank(1, IN_BACKWARD, threads=0.9, common=3),
    ],
    "its thread pool computes": [rank(0, at("result", "lock"), threads=0.9)],
    "its thread pool computes, and others wait": [rank(0, IN_BACKWARD), rank(1, at("result", "lock"), threads=0.9)],
    "its process pool computes": [rank(0, at("map", "lock"), tree=1.8)],
    "its process pool computes, and others wait": [rank(0, IN_BACKWARD), rank(1, at("map", "lock"), tree=0.5)],
    "its process pool computes, and it collects": [
        rank(0, IN_BACKWARD),
        rank(1, at("map"), at("load"), at("map"), cpu=0.4, tree=0.9),
    ],
    "a process that it has started computes": [rank(0, at("run", "child"), tree=0.9)],
    "its loader process computes": [rank(0, IN_BACKWARD), rank(1, at("__next__"), in_loader=True, tree=0.9)],
    "its loader process would compute if it were let": [rank(0, at("__next__"), in_loader=True, tree=0.4)],
    "it gets a tenth of a core": [rank(0, at("fit"), cpu=0.08, delay=0.9)],
    "it has not got a core at all while we looked": [rank(0, at("fit"), state="R")],
    "it compiles, and others wait": [rank(0, IN_BACKWARD), rank(1, COMPILING, at("x"), cpu=1.0)],
    "it waits for another rank that compiles": [rank(0, COMPILING, cpu=1.0), rank(1, (*COMPILING, LOCK))],
    "it imports, and others wait": [rank(0, IN_BACKWARD), rank(1, IMPORTING, cpu=0.9)],
    "it imports from a slow disk": [rank(0, IN_BACKWARD), rank(1, IMPORTING, state="D")],
    "all in the same collective, which moves a lot": [
        rank(0, IN_ALL_REDUCE, common=5, threads=0.9),
        rank(1, IN_ALL_REDUCE, common=5, threads=0.9),
    ],
    "a barrier, while another rank reports on and on": [
        rank(0, (TRAIN, INSIDE), wait=IN_BARRIER),
        rank(1, at("eval"), **REPORTS),
    ],
    "a collective that has just begun": [rank(0, IN_ALL_REDUCE), rank(1, IN_ALL_REDUCE, silent=False)],
    "backward, busy": [rank(0, IN_BACKWARD, cpu=1.0), rank(1, IN_BACKWARD, cpu=1.0)],
}


@pytest.mark.parametrize("name", QUIET)
def test_no_stall(name: str) -> None:
    assert diagnose(QUIET[name]) is None


@pytest.mark.parametrize("fault", BLAMED)
@pytest.mark.parametrize("waiting", [0, 1])
def test_an_inactive_rank_is_named_while_another_one_continues_to_report(fault: str, waiting: int) -> None:
    seen = [BLAMED[fault], rank(2, at("fit"), cpu=0.5, **REPORTS)]
    seen += [rank(0, IN_BACKWARD, common=8)] * waiting
    found = diagnose(seen)
    if fault in ("busy", "slow") and not waiting:
        assert found is None, "it may be in its own time"
    else:
        assert found is not None
        assert (found.fault, found.ranks) == (fault, (1,))


def test_a_contradiction_is_named_while_another_rank_continues_to_report() -> None:
    other = rank(3, at("fit"), **REPORTS)
    found = diagnose([rank(0, IN_ALL_REDUCE), rank(1, IN_BROADCAST), rank(2, IN_ALL_REDUCE), other])
    assert found is not None
    assert (found.fault, found.ranks) == ("mismatch", (1,))
    held = [rank(0, IN_BACKWARD, batches=13), rank(2, IN_BACKWARD, batches=13)]
    found = diagnose([*held, rank(1, over=True, batches=12), other])
    assert found is not None
    assert (found.fault, found.ranks) == ("uneven", (1,))


def test_a_rank_that_spins_is_named_when_ranks_in_step_with_it_continue() -> None:
    other = rank(0, at("fit"), **REPORTS)
    found = diagnose([other, rank(1, at("spin"), cpu=0.97, left_behind=True)])
    assert found is not None
    assert (found.fault, found.ranks) == ("busy", (1,))
    assert diagnose([other, rank(1, at("a"), at("b"), at("a"), cpu=0.97, left_behind=True)]) is None
    assert diagnose([other, rank(1, at("map", "lock"), tree=0.97, left_behind=True)]) is None


def test_an_endless_loop_on_a_crowded_machine_is_busy_not_blocked() -> None:
    for crowded in (rank(1, at("spin"), cpu=0.07, delay=0.9), rank(1, at("spin"), state="R")):
        found = diagnose([rank(0, IN_BACKWARD), crowded])
        assert found is not None
        assert found.fault == "busy"
        assert crowded.starved > 0.8


def test_a_rank_that_computes_does_not_wait_for_what_its_line_names() -> None:
    found = diagnose([rank(0, IN_BACKWARD), rank(1, at("spin", "io"), cpu=0.9)])
    assert found is not None
    assert found.fault == "busy"


@pytest.mark.parametrize(("bytes_per_s", "fault"), [(1_000_000, None), (1_000, "io")])
def test_a_rank_that_fills_a_file_is_not_inactive(bytes_per_s: int, fault: str | None) -> None:
    """For example, a download on rank 0 while the others wait in a barrier; a few log lines do not count."""
    stuck = rank(0, at("recv_into", "io"))
    looks = tuple(replace(sample, moved_bytes=int(bytes_per_s * sample.time_s)) for sample in stuck.samples)
    found = diagnose([replace(stuck, samples=looks), rank(1, (TRAIN, INSIDE), wait=IN_BARRIER)])
    assert (found and found.fault) == fault


def test_a_module_that_hangs_while_it_is_imported_is_named() -> None:
    found = diagnose([rank(0, IN_BACKWARD), rank(1, (*IMPORTING, LOCK))])
    assert found is not None
    assert (found.fault, found.ranks) == ("lock", (1,))


def test_a_rank_that_waits_for_batches_of_others_does_not_wait_for_its_loader() -> None:
    held = rank(0, (TRAIN, INSIDE, LOCK), wait=FOR_BATCH, in_loader=True, batches=5)
    found = diagnose([held, rank(1, at("__next__"), in_loader=True, batches=3)])
    assert found is not None
    assert (found.fault, found.ranks) == ("loader", (1,))
    found = diagnose([held, rank(1, IN_ALL_REDUCE, batches=3, common=1)])
    assert found is not None
    assert (found.fault, found.ranks) == ("uneven", (1,)), "it calls what the others do not"


def test_a_stopped_process_is_a_stall_in_a_phase_too() -> None:
    found = diagnose([rank(0, IN_ALL_REDUCE), rank(1, at("x"), state="T", phase="tokenise")])
    assert found is not None
    assert found.fault == "stopped"


@pytest.mark.parametrize("operation", sorted(FOR_RANKS))
def test_a_rank_waits_in_what_its_heartbeat_says(operation: WaitOperation) -> None:
    wait = Wait(operation=operation, since=0.0)
    found = diagnose([rank(0, (TRAIN, INSIDE, LOCK), wait=wait), rank(1, at("nap", "sleep"))])
    assert found is not None
    assert (found.fault, found.ranks) == ("sleep", (1,))
    assert f"rank 0 waits in {WAITS[operation]} (called in train_func (train.py:31)) for rank 1" in found.text
