"""The activity of a rank, from the calls of its main thread and from its heartbeat."""

from __future__ import annotations

from typing import get_args

import pytest

from headway.core.messages import FOR_RANKS, Frame, Wait, WaitOperation
from headway.diagnosis.activity import WAITS, doing, is_compiling

TRAIN = Frame("/home/you/train.py", 31, "train_func")
INSIDE = Frame("/src/headway/worker/requests.py", 74, "wait", users=False)  # a Headway call
LOCK = Frame("/lib/python3.11/threading.py", 355, "wait", users=False, hint="lock")
CONVERT = Frame("/site/torch/_dynamo/convert_frame.py", 1300, "__call__", users=False)
IN_BARRIER = Wait(operation="barrier", since=0.0)


@pytest.mark.parametrize("operation", sorted(FOR_RANKS))
def test_a_wait_for_other_ranks_is_what_the_heartbeat_says(operation: WaitOperation) -> None:
    found = doing((TRAIN, INSIDE, LOCK), idle=True, wait=Wait(operation=operation, since=0.0))
    assert (found.kind, found.what, found.where) == ("wait", WAITS[operation], "train_func (train.py:31)")


def test_what_has_been_compiled_is_not_what_compiles() -> None:
    assert not is_compiling((TRAIN, Frame("/site/torch/_inductor/compile_fx.py", 1, "run", users=False)))
    assert not is_compiling((TRAIN, Frame("/site/torch/_dynamo/eval_frame.py", 1, "_fn", users=False)))
    assert is_compiling((TRAIN, CONVERT))


def test_the_users_innermost_line_says_where() -> None:
    inner = Frame("/home/you/data.py", 7, "decode")
    library = Frame("/lib/python3.11/threading.py", 320, "wait", users=False)
    found = doing((TRAIN, inner, library), idle=True)
    assert (found.kind, found.where) == ("lock", "decode (data.py:7)")


@pytest.mark.parametrize("operation", sorted(set(get_args(WaitOperation)) - FOR_RANKS))
def test_a_wait_for_storage_or_the_controller_is_no_wait_for_ranks(operation: WaitOperation) -> None:
    wait = Wait(operation=operation, since=0.0)
    assert doing((TRAIN, INSIDE, LOCK), idle=True, wait=wait).kind == "lock"


def test_a_wait_for_a_pool_is_a_wait_for_its_processes() -> None:
    result = Frame("/lib/python3.11/multiprocessing/pool.py", 768, "get", users=False)
    assert doing((TRAIN, result, LOCK), idle=True).kind == "child", "not for a lock"


def test_a_wait_that_has_ended_since_the_heartbeat_does_not_count() -> None:
    spin = Frame("/home/you/train.py", 12, "spin")
    assert doing((TRAIN, spin), idle=False, wait=IN_BARRIER).kind == "code"
    handler = Frame("/home/you/train.py", 40, "on_alarm", hint="lock")  # a signal handler that interrupts the wait
    assert doing((TRAIN, INSIDE, handler), idle=True, wait=IN_BARRIER).kind == "lock"


def test_a_library_below_the_users_own_function_is_not_what_it_waits_in() -> None:
    """A user callback that is called by a loader or a thread pool counts as user code."""
    pool = Frame("/lib/python3.11/threading.py", 1, "run", users=False)
    assert doing((pool, TRAIN), idle=False).kind == "code"
