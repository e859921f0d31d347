"""The assignment of resources to runs, which is arithmetic: the tests need no process and no GPU."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.config import ScalingConfig
from headway.core.errors import ConfigError
from headway.engine.resources.allocation import (
    Allocation,
    Gang,
    ResourceInventory,
    ResourceLease,
    check,
    grown,
    next_grant,
    placed,
    waits_for,
)

MACHINE = ResourceInventory(gpus=("0", "1", "2", "3"), amounts={"CPU": 8, "memory": 1e12, "licence": 2})


def gang(num_workers: int | tuple[int, int] = 1, owner: str = "run", **per_worker: float) -> Gang:
    return Gang.of(ScalingConfig(num_workers, resources_per_worker=per_worker or None), owner)


def fits(asked: Gang, *leases: ResourceLease) -> int:
    lease = placed(asked, Allocation(inventory=MACHINE, leases=leases))
    return lease.num_workers if lease is not None else 0


def granted(asked: Gang, *leases: ResourceLease) -> ResourceLease:
    lease = placed(asked, Allocation(inventory=MACHINE, leases=leases))
    assert lease is not None
    return lease


def test_as_many_workers_as_fit_come_up() -> None:
    assert fits(gang(100)) == 100, "more processes than cores is slow, not impossible"
    assert fits(gang((1, 100), CPU=3)) == 2
    assert fits(Gang.of(ScalingConfig((1, 100), use_gpu=True))) == 4
    assert fits(gang((1, 100), GPU=0.5)) == 8
    assert fits(gang((1, 100), GPU=0.4)) == 8
    assert fits(gang((1, 100), GPU=2)) == 2
    assert fits(gang((1, 100), licence=1)) == 2


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (gang(5, GPU=1), "the run needs 5 GPUs (5 workers × 1), this machine has 4"),
        (gang(1, GPU=5), "the run needs 5 GPUs, this machine has 4"),
        (gang(3, CPU=3), "the run needs 9 CPUs (3 workers × 3), this machine has 8"),
        (gang(7, GPU=0.6), "the run needs 4.2 GPUs (7 workers × 0.6), this machine has 4"),
        (gang(5, GPU=0.6), "the run needs 3 GPUs (5 workers × 0.6), this machine has 4"),
        (gang(3, licence=1), "the run needs 3 'licence' (3 workers × 1), this machine has 2"),
        (gang(1, memory=1e18), "the run needs 1e+18 bytes of memory"),
        (gang(1, quantum=1), "the run needs 1 'quantum', this machine has 0: lower num_workers or"),
    ],
)
def test_what_can_never_fit_is_refused_with_the_sum(asked: Gang, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(asked, MACHINE)
    assert str(caught.value).startswith(sentence)


def test_what_could_fit_is_not_refused() -> None:
    for asked in (gang(100), gang(4, GPU=1), gang(4, GPU=0.6), gang((1, 100), GPU=2), gang(2, licence=1)):
        check(asked, MACHINE)


def test_each_worker_gets_gpus_of_its_own() -> None:
    assert granted(gang(2)).gpus == ((), ())
    assert granted(gang(2, GPU=1)).gpus == (("0",), ("1",))
    assert granted(gang(2, GPU=2)).gpus == (("0", "1"), ("2", "3"))
    assert granted(gang(4, GPU=0.5)).gpus == (("0",), ("0",), ("1",), ("1",))


def test_what_a_run_holds_is_not_given_to_another() -> None:
    first = granted(gang(2, GPU=1))
    assert granted(gang(2, GPU=1), first).gpus == (("2",), ("3",))
    assert fits(gang(3, GPU=1), first) == 0, "the whole gang or nothing"
    assert fits(gang((1, 4), GPU=1), first) == 2
    assert fits(gang(2, licence=1), granted(gang(1, licence=1))) == 0
    assert fits(gang(1, CPU=6), granted(gang(1, CPU=3))) == 0


def test_parts_of_gpus_are_taken_of_idle_ones_first() -> None:
    leases = [granted(gang(3, GPU=1))]
    for gpu in ("3", "3"):
        leases.append(granted(gang(1, GPU=0.5), *leases))
        assert leases[-1].gpus == ((gpu,),)
    assert fits(gang(1, GPU=0.1), *leases) == 0


def test_gpus_of_other_programs_are_left_to_them() -> None:
    allocation = Allocation(inventory=MACHINE, taken={"0": "process 7"}, shared=frozenset({"1"}))
    whole, part = placed(gang((1, 4), GPU=1), allocation), placed(gang(5, GPU=0.5), allocation)
    assert whole is not None
    assert whole.gpus == (("2",), ("3",))
    assert part is not None
    assert part.gpus == (("2",), ("2",), ("3",), ("3",), ("1",))


def test_the_oldest_request_comes_first_and_is_not_overtaken() -> None:
    holder = granted(gang(2, GPU=1))
    large, small, other = gang(4, "large", GPU=1), gang(1, "small", GPU=1), gang(1, "other", licence=1)
    waiting = Allocation(inventory=MACHINE, leases=(holder,), requests=(large, small, other))
    lease = next_grant(waiting)
    assert lease is not None
    assert lease.gang is other, "it wants nothing that an older request waits for"
    assert next_grant(replace(waiting, requests=(large, small))) is None
    freed = next_grant(replace(waiting, leases=()))
    assert freed is not None
    assert freed.gang is large


def test_an_elastic_run_grows_if_no_request_waits_for_the_same() -> None:
    holder, elastic = granted(gang(2, GPU=1)), gang((1, 4), GPU=1)
    lease = granted(elastic, holder)
    assert lease.gpus == (("2",), ("3",))
    freed = Allocation(inventory=MACHINE, leases=(lease,))
    assert grown(lease, replace(freed, requests=(gang(4, GPU=1),))) is None
    more = grown(lease, freed)
    assert more is not None
    assert more.gpus == (("2",), ("3",), ("0",), ("1",))
    assert grown(more, replace(freed, leases=(more,))) is None


def test_a_line_says_what_a_run_waits_for_and_who_holds_it() -> None:
    holder = granted(gang(2, "first", GPU=1))
    older, mine = gang(4, "older", GPU=1), gang(2, "mine", GPU=1, licence=1)
    allocation = Allocation(
        inventory=MACHINE, leases=(holder,), requests=(older, mine), taken={"2": "process 7 (train.py)"}
    )
    assert waits_for(mine, allocation) == (
        "waiting for 2 GPUs (2 workers × 1): 1 of 4 free (first: GPU 0, 1; process 7 (train.py): GPU 2); "
        "1 older request waits"
    )
    licences = Allocation(inventory=MACHINE, leases=(granted(gang(2, "first", licence=1)),), requests=(mine,))
    assert waits_for(mine, licences) == "waiting for 2 'licence' (2 workers × 1): 0 of 2 free (first: 2)"


GANGS = st.builds(
    lambda workers, share: gang(workers, GPU=share) if check_fits(workers, share) else gang(1, GPU=1),
    st.integers(1, 6),
    st.sampled_from([0.25, 0.3, 0.5, 1, 2, 3, 4]),
)


def check_fits(workers: int, share: float) -> bool:
    try:
        check(gang(workers, GPU=share), MACHINE)
    except ConfigError:
        return False
    return True


@given(st.lists(GANGS, min_size=1, max_size=20), st.randoms())
def test_no_gpu_is_given_out_twice_and_every_request_is_granted_in_order(gangs: list[Gang], chance: object) -> None:
    waiting, leases, order = list(gangs), list[ResourceLease](), list[Gang]()
    for _ in itertools.count():
        if not waiting and not leases:
            break
        while lease := next_grant(Allocation(inventory=MACHINE, leases=tuple(leases), requests=tuple(waiting))):
            waiting.pop(next(number for number, each in enumerate(waiting) if each is lease.gang))
            leases.append(lease)
            order.append(lease.gang)
            use = Allocation(inventory=MACHINE, leases=tuple(leases)).gpu_use()
            assert all(share <= 1 + 1e-9 for share in use.values()), use
        leases.pop(chance.randrange(len(leases)))  # type: ignore[attr-defined]
    assert [id(each) for each in order] == [id(each) for each in gangs]
