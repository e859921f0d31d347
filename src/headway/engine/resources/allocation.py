"""Pure functions that assign CPUs, GPUs, GPU fractions and custom resources to runs, oldest request first.

    available resources + current leases + waiting requests, oldest first ──▶ next_grant: a lease for one, or None

A request is granted completely or waits. A waiting request holds back younger ones that need the same kind of resource,
so that none waits forever; younger ones that need other kinds pass it. Elastic runs grow only after that.

CPUs are limited only for runs that declare them with ``resources_per_worker={"CPU": ...}``, because more processes than
cores are slow but possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headway.core.config import ScalingConfig
from headway.core.errors import ConfigError

GPU = "GPU"
_ROUNDING = 1e-9  # three thirds of a GPU are one GPU


@dataclass(frozen=True, kw_only=True)
class ResourceInventory:
    """A machine's resources: its GPUs, as CUDA_VISIBLE_DEVICES names them, and the amount of every other resource."""

    gpus: tuple[str, ...] = ()
    amounts: Mapping[str, float] = field(default_factory=dict)

    def amount(self, name: str) -> float:
        return len(self.gpus) if name == GPU else self.amounts.get(name, 0)


@dataclass(frozen=True, kw_only=True)
class Gang:
    """The needs of one run's workers. The minimum number of workers start together or not at all.

    Args:
        owner: The name of the requesting run, used in messages.
        min_workers: The minimum number of workers the run needs.
        max_workers: The maximum number of workers the run can use.
        per_worker: The amount each worker needs, keyed by resource name.
    """

    owner: str
    min_workers: int
    max_workers: int
    per_worker: Mapping[str, float]

    @classmethod
    def of(cls, scaling: ScalingConfig, owner: str = "") -> Gang:
        limited = scaling.worker_resources if scaling.resources_per_worker or scaling.use_gpu else {}
        return cls(
            owner=owner,
            min_workers=max(1, scaling.min_workers),
            max_workers=max(1, scaling.max_workers),
            per_worker={name: amount for name, amount in limited.items() if amount},
        )

    @property
    def gpus_per_worker(self) -> float:
        return self.per_worker.get(GPU, 0)


@dataclass(frozen=True, kw_only=True)
class ResourceLease:
    """The resources that one run holds.

    Args:
        gang: The run's request.
        gpus: The GPUs of each of its workers.
        shares: Whether its GPUs stay available to others (``HEADWAY_SHARE_GPUS``, or an outer torchrun decides).
    """

    gang: Gang
    gpus: tuple[tuple[str, ...], ...]
    shares: bool = False

    @property
    def num_workers(self) -> int:
        return len(self.gpus)

    def amount(self, name: str) -> float:
        return self.gang.per_worker.get(name, 0) * self.num_workers

    def gpu_use(self) -> dict[str, float]:
        """Return how much of each GPU the run holds, between 0 and 1."""
        use: dict[str, float] = {}
        for gpu in (gpu for gpus in self.gpus for gpu in gpus if not self.shares):
            use[gpu] = use.get(gpu, 0) + min(1, self.gang.gpus_per_worker)
        return use


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """The machine's resources, who holds them, and who waits for them.

    Args:
        inventory: The machine's resources.
        leases: The leases of this program's runs.
        requests: Waiting gangs, oldest first.
        taken: GPUs that other programs hold exclusively, each with a description of its user.
        shared: GPUs that other programs hold parts of.
    """

    inventory: ResourceInventory
    leases: tuple[ResourceLease, ...] = ()
    requests: tuple[Gang, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    shared: frozenset[str] = frozenset()

    def free(self, name: str) -> float:
        if name == GPU:
            used = self.gpu_use()
            return sum(1 for gpu in self.inventory.gpus if gpu not in {*self.taken, *self.shared} and not used.get(gpu))
        return self.inventory.amount(name) - sum(lease.amount(name) for lease in self.leases)

    def gpu_use(self) -> dict[str, float]:
        use: dict[str, float] = {}
        for lease in self.leases:
            for gpu, share in lease.gpu_use().items():
                use[gpu] = use.get(gpu, 0) + share
        return use


_REQUESTED_BY = {
    GPU: "the GPUs of each worker (use_gpu, resources_per_worker; with headway run: -n, --gpus-per-worker)",
    "CPU": "the CPUs of each worker (resources_per_worker; with headway run: -n, --cpus-per-worker)",
}


def check(gang: Gang, inventory: ResourceInventory) -> None:
    """Raise ConfigError if the gang could not run even on an idle machine."""
    for name, amount in gang.per_worker.items():
        needed, have = gang.min_workers * amount, inventory.amount(name)
        fits = _num_workers_of(inventory, name, amount)
        if needed > have + _ROUNDING or fits < gang.min_workers:
            raise ConfigError(
                f"the run needs {_quantity(gang.min_workers, name, amount)}, this machine has {have:g}: "
                f"lower num_workers or {_REQUESTED_BY.get(name, 'resources_per_worker')}"
            )


def _num_workers_of(inventory: ResourceInventory, name: str, amount: float) -> int:
    if name == GPU and amount < 1:
        return int(1 / amount + _ROUNDING) * len(inventory.gpus)
    return int(inventory.amount(name) / amount + _ROUNDING)


def _quantity(num_workers: int, name: str, amount: float) -> str:
    each = f" ({num_workers} workers × {amount:g})" if num_workers > 1 else ""
    total = num_workers * amount
    unit = {"memory": "bytes of memory"}.get(name, name if name in ("CPU", GPU) else repr(name))
    plural = "s" if name in ("CPU", GPU) and total != 1 else ""
    return f"{total:g} {unit}{plural}{each}"


def next_grant(allocation: Allocation) -> ResourceLease | None:
    """Return the lease of the oldest request that can be granted now."""
    held_back: set[str] = set()
    for gang in allocation.requests:
        if held_back.isdisjoint(gang.per_worker) and (lease := placed(gang, allocation)) is not None:
            return lease
        held_back.update(gang.per_worker)
    return None


def placed(gang: Gang, allocation: Allocation) -> ResourceLease | None:
    """Return a lease for as many workers as fit into what is free; None if that is fewer than ``min_workers``."""
    fits = gang.max_workers
    for name, amount in gang.per_worker.items():
        if name != GPU:
            fits = min(fits, int(allocation.free(name) / amount + _ROUNDING))
    gpus = _gpus_of_workers(gang.gpus_per_worker, fits, allocation)
    return ResourceLease(gang=gang, gpus=gpus) if len(gpus) >= gang.min_workers else None


def _gpus_of_workers(share: float, num_workers: int, allocation: Allocation) -> tuple[tuple[str, ...], ...]:
    """Return the GPUs of each of up to ``num_workers`` workers.

    They are whole idle GPUs, or fractions, preferring idle GPUs and using shared ones last.
    """
    if not share:
        return ((),) * max(0, num_workers)
    used = allocation.gpu_use()
    available = [gpu for gpu in allocation.inventory.gpus if gpu not in allocation.taken]
    idle = [gpu for gpu in available if not used.get(gpu) and gpu not in allocation.shared]
    if share >= 1:
        width = int(share)
        return tuple(tuple(idle[i * width : (i + 1) * width]) for i in range(min(num_workers, len(idle) // width)))
    in_use = sorted((gpu for gpu in available if gpu not in idle), key=lambda gpu: gpu in allocation.shared)
    seats = [(gpu,) for gpu in (*idle, *in_use) for _ in range(int((1 - used.get(gpu, 0)) / share + _ROUNDING))]
    return tuple(seats[: max(0, num_workers)])


def grown(lease: ResourceLease, allocation: Allocation, limit: float = math.inf) -> ResourceLease | None:
    """Return the lease extended by more workers; None if there is no room or others wait for the same resources.

    Args:
        lease: The lease of an elastic run.
        allocation: The current state of the machine.
        limit: The maximum number of workers, if it is less than the run's own.
    """
    if any(not lease.gang.per_worker.keys().isdisjoint(request.per_worker) for request in allocation.requests):
        return None
    missing = int(min(lease.gang.max_workers, limit)) - lease.num_workers
    if missing <= 0:
        return None
    more = placed(replace(lease.gang, min_workers=1, max_workers=missing), allocation)
    return replace(lease, gpus=(*lease.gpus, *more.gpus)) if more is not None else None


def waits_for(gang: Gang, allocation: Allocation) -> str:
    """Describe in one line what a request waits for and which runs hold it."""
    others = replace(allocation, requests=())
    short = [name for name in gang.per_worker if not _fits(gang, name, others)] or list(gang.per_worker)
    parts = []
    for name in short:
        holders = list(_holders(name, allocation))
        users = f" ({'; '.join(holders[:8])}{'; …' if len(holders) > 8 else ''})" if holders else ""
        free = f"{max(0, allocation.free(name)):g} of {allocation.inventory.amount(name):g}"
        parts.append(f"{_quantity(gang.min_workers, name, gang.per_worker[name])}: {free} free{users}")
    ahead = next((number for number, request in enumerate(allocation.requests) if request is gang), 0)
    queue = f"; {ahead} older request{'s wait' if ahead > 1 else ' waits'}" if ahead else ""
    return f"waiting for {', and for '.join(parts)}{queue}"


def _fits(gang: Gang, name: str, allocation: Allocation) -> bool:
    return placed(replace(gang, per_worker={name: gang.per_worker[name]}), allocation) is not None


def _holders(name: str, allocation: Allocation) -> Iterable[str]:
    for lease in allocation.leases:
        if name == GPU and lease.gpu_use():
            yield f"{lease.gang.owner}: GPU {', '.join(lease.gpu_use())}"
        elif name != GPU and lease.amount(name):
            yield f"{lease.gang.owner}: {lease.amount(name):g}"
    if name == GPU:
        yield from (f"{user}: GPU {', '.join(gpus)}" for user, gpus in _by_user(allocation.taken))


def _by_user(taken: Mapping[str, str]) -> Sequence[tuple[str, list[str]]]:
    users: dict[str, list[str]] = {}
    for gpu, user in taken.items():
        users.setdefault(user, []).append(gpu)
    return list(users.items())
