"""The assignment of ranks to ready workers, and the environment variables of each rank. Pure.

Workers on one host get consecutive ranks, ordered by their lowest GPU; the host whose worker was ready first gets
rank 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.messages import RankAssignment, Ready


def order(ready: Sequence[Ready]) -> list[int]:
    """Return the indices of the launched workers in rank order."""
    hosts = list(dict.fromkeys(worker.host for worker in ready))
    return sorted(
        range(len(ready)), key=lambda i: (hosts.index(ready[i].host), *map(_gpu_order, ready[i].gpus[:1]), (i, ""))
    )


def places(ready: Sequence[Ready], *, num_threads: int | None) -> list[RankAssignment]:
    """Return one rank assignment per rank; ``ready`` is already in rank order."""
    if (outer := ready[0].place) is not None:
        return [outer]
    hosts = list(dict.fromkeys(worker.host for worker in ready))
    on_host = {host: [w for w in ready if w.host == host] for host in hosts}
    visible = {
        host: sorted({gpu for w in workers for gpu in w.gpus}, key=_gpu_order) for host, workers in on_host.items()
    }
    seen: dict[str, int] = {}
    found = []
    for rank, worker in enumerate(ready):
        local_rank = seen[worker.host] = seen.get(worker.host, -1) + 1
        found.append(
            RankAssignment(
                rank=rank,
                world_size=len(ready),
                local_rank=local_rank,
                local_world_size=len(on_host[worker.host]),
                node_rank=hosts.index(worker.host),
                num_nodes=len(hosts),
                gpus=tuple(visible[worker.host].index(gpu) for gpu in worker.gpus),
                visible_gpus=tuple(visible[worker.host]),
                num_threads=num_threads,
                master_addr=ready[0].address,
                master_port=ready[0].port,
            )
        )
    return found


def _gpu_order(gpu: str) -> tuple[int, str]:
    """Sort GPUs by number if they have one, so that 10 comes after 9."""
    return (int(gpu), "") if gpu.isdigit() else (1 << 30, gpu)


def environment(place: RankAssignment) -> dict[str, str]:
    """Return the variables from which torch.distributed, Accelerate and Lightning read their rank."""
    env = {
        "HEADWAY_WORKER": "1",
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "NODE_RANK": str(place.node_rank),
        "GROUP_RANK": str(place.node_rank),
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": str(place.master_port),
    }
    if place.visible_gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(place.visible_gpus)
    if place.num_threads is not None:
        env["OMP_NUM_THREADS"] = str(place.num_threads)
    return env


def torchrun_environment(place: RankAssignment, *, run: str, restarts: int, max_restarts: int) -> dict[str, str]:
    """Return the variables that torchrun sets in addition; its scripts read them to skip work after a restart.

    Args:
        place: The ranks of the worker.
        run: The run's name.
        restarts: Earlier attempts since the run was last opened.
        max_restarts: Maximum number of restarts; -1: unlimited.
    """
    return {
        "GROUP_WORLD_SIZE": str(place.num_nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(place.world_size),
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # no agent provides a store
    }
