"""Assignment of ranks and GPUs."""

from __future__ import annotations

from headway.control.workers.ranks import environment, order, places
from headway.core.messages import RankAssignment, Ready


def ready(host: str, *gpus: str, port: int = 0) -> Ready:
    return Ready(host=host, pid=1, gpus=gpus, address=f"address-of-{host}", port=port)


def test_ranks_are_ordered_by_host_and_then_by_gpu() -> None:
    workers = [ready("a", "10"), ready("b", "0"), ready("a", "9"), ready("b", "1")]
    assert order(workers) == [2, 0, 1, 3]


def test_without_gpus_workers_keep_their_order() -> None:
    assert order([ready("a"), ready("a"), ready("a")]) == [0, 1, 2]


def test_local_ranks_count_within_hosts() -> None:
    found = places([ready("a"), ready("a"), ready("b")], num_threads=2)
    assert [(p.rank, p.local_rank, p.local_world_size, p.node_rank) for p in found] == [
        (0, 0, 2, 0),
        (1, 1, 2, 0),
        (2, 0, 1, 1),
    ]
    assert {(p.world_size, p.num_nodes, p.num_threads) for p in found} == {(3, 2, 2)}


def test_rank_0_says_where_all_meet() -> None:
    found = places([ready("b", port=17), ready("a", port=18)], num_threads=None)
    assert {(p.master_addr, p.master_port) for p in found} == {("address-of-b", 17)}
    env = environment(found[1])
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("address-of-b", "17")


def test_workers_of_a_node_see_all_its_gpus_and_each_has_its_own() -> None:
    found = places([ready("a", "4", "5"), ready("a", "6", "7")], num_threads=None)
    assert [p.visible_gpus for p in found] == [("4", "5", "6", "7")] * 2
    assert [p.gpus for p in found] == [(0, 1), (2, 3)]


def test_two_workers_may_share_a_gpu() -> None:
    found = places([ready("a", "0"), ready("a", "0")], num_threads=None)
    assert [(p.gpus, p.visible_gpus) for p in found] == [((0,), ("0",))] * 2


def test_the_environment_has_the_usual_variables() -> None:
    place = RankAssignment(rank=1, world_size=2, local_rank=1, local_world_size=2, visible_gpus=("3",), num_threads=4)
    env = environment(place)
    assert env["RANK"] == "1"
    assert env["CUDA_VISIBLE_DEVICES"] == "3"
    assert env["OMP_NUM_THREADS"] == "4"
    assert "CUDA_VISIBLE_DEVICES" not in environment(
        RankAssignment(rank=0, world_size=1, local_rank=0, local_world_size=1)
    )
