"""The resource broker of this program: one queue for the GPUs and other declared resources of all its runs.

    run ── request ──▶ queue ──▶ lease ── release ──▶ the next request is granted, in the thread that releases

:mod:`headway.engine.resources.allocation` decides; this module holds the state, and the locks that keep programs from
using each other's GPUs (:mod:`headway.engine.resources.gpu_locks`). Within a program, grants are pushed. There is no
notification when another program releases a GPU, so a run that waits for GPUs polls every :data:`LOOK_S` seconds.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import gc
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace

from headway.core.config import ScalingConfig
from headway.core.environment import in_worker, logical_resources, outer_ranks, shares_gpus
from headway.core.errors import ConfigError, EngineError, HeadwayError
from headway.core.messages import CapacityEvent, ResourcesAwaitedEvent, ResourcesGrantedEvent
from headway.engine.resources import allocation, hardware, worker_limits
from headway.engine.resources.allocation import Allocation, Gang, ResourceInventory, ResourceLease
from headway.engine.resources.gpu_locks import GpuLocks

LOOK_S = 0.25


class Request:
    """One run's entry in the queue, and its lease once the request is granted.

    Args:
        gang: What the run needs.
        on_grant: The method to call when the request is granted. Its object is not kept alive.
        in_process: Whether this process is the run's worker.
    """

    def __init__(self, gang: Gang, on_grant: Callable[[], None], *, in_process: bool = False) -> None:
        self.gang = gang
        self.in_process = in_process
        self.lease: ResourceLease | None = None
        self._on_grant = weakref.WeakMethod(on_grant)

    def announce_grant(self) -> None:
        if (on_grant := self._on_grant()) is not None:
            on_grant()


class Broker:
    """The queue, which grants requests in order. Any thread may call it; the releasing thread announces the grants."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._guard = threading.Lock()
        self._waiting: list[Request] = []
        self._granted: list[Request] = []
        self._abandoned: collections.deque[Request] = collections.deque()
        self._locks = GpuLocks()

    def request(self, request: Request) -> None:
        """Join the queue. The request is granted immediately if possible."""
        if request.gang.gpus_per_worker:
            hardware.gpu_uuids()  # slow at first, so not while the lock is held
        with self._guard:
            self._waiting.append(request)
        self.look()

    def release(self, request: Request) -> None:
        """Leave the queue or release the lease."""
        with self._guard:
            self._remove(request)
        with contextlib.suppress(HeadwayError):  # it concerns a run that waits, not the one that releases
            self.look()  # also unlocks GPUs that are no longer in use

    def on_fork(self) -> None:
        """Forget everything in a process that the user forked, because the leases belong to its parent.

        Another thread of the parent may have held the lock, so the lock is replaced.
        """
        self._locks.abandon()
        self._forget()

    def abandon(self, request: Request) -> None:
        """Release a lease whose run was garbage-collected without a release.

        The garbage collector may interrupt any thread, even one that holds the lock, so it must not be awaited.
        """
        self._abandoned.append(request)
        with contextlib.suppress(RuntimeError):  # the program is ending
            _thread.start_new_thread(self.look, ())  # threading.Thread has locks that this thread may hold

    def look(self) -> None:
        """Grant the requests that can be granted now."""
        news = []
        try:
            with self._guard:
                while self._abandoned:
                    self._remove(self._abandoned.popleft())
                while (request := self._next_granted()) is not None:
                    news.append(request)
        finally:
            for request in news:
                request.announce_grant()

    def _remove(self, request: Request) -> None:
        for requests in (self._waiting, self._granted):
            if request in requests:
                requests.remove(request)
        request.lease = None

    def grow(self, request: Request, limit: float) -> None:
        """Add workers to the lease of an elastic run, if there is room and no other run is waiting for it."""
        with self._guard:
            if request.lease is not None:
                lease = request.lease
                request.lease = self._locked(lambda now: allocation.grown(lease, now, limit)) or lease

    def waits_for(self, request: Request) -> str:
        """Describe in one line what a request waits for and which runs hold it."""
        with self._guard:
            self._probe(request)
            return allocation.waits_for(request.gang, self._allocation())

    def check_wait(self, request: Request) -> None:
        """Raise EngineError if a request should not wait.

        The lock of a GPU cannot be opened, or this process is a worker and the outer run may hold what is needed: GPUs
        of another program, or anything held by a run whose worker is this process. Other runs of this process, in
        other threads, can be waited for.
        """
        with self._guard:
            self._probe(request)
            if request.gang.gpus_per_worker and self._locks.unusable:
                raise EngineError("; ".join(self._locks.unusable.values()))
            now = self._allocation()
            outer = tuple(each.lease for each in self._granted if each.in_process and each.lease is not None)
            if in_worker() and allocation.placed(request.gang, replace(now, leases=outer, requests=())) is None:
                raise EngineError(
                    "a run inside a worker cannot wait for what the outer run may hold "
                    f"({allocation.waits_for(request.gang, now)}): "
                    "request less in the outer run, or set HEADWAY_SHARE_GPUS=1 to use GPUs that are in use"
                )

    def _probe(self, request: Request) -> None:
        for gpu in hardware.gpus() if request.gang.gpus_per_worker else ():
            self._locks.probe(gpu)

    def _next_granted(self) -> Request | None:
        for request in self._waiting:
            if _shares_gpus(request.gang):
                alone = Allocation(inventory=inventory(request.gang))
                request.lease = allocation.placed(request.gang, alone)
                if request.lease is not None:
                    request.lease = replace(request.lease, shares=True)
                    return self._move(request)
        lease = self._locked(allocation.next_grant)
        if lease is None:
            return None
        request = next(each for each in self._waiting if each.gang is lease.gang)
        request.lease = lease
        return self._move(request)

    def _move(self, request: Request) -> Request:
        self._waiting.remove(request)
        self._granted.append(request)
        return request

    def _locked(self, decide: Callable[[Allocation], ResourceLease | None]) -> ResourceLease | None:
        """Return a lease on GPUs that no other program has locked; try again without those that turn out to be.

        Each failure to lock a GPU records it as shared or as taken, so that the number of retries is limited.
        """
        self._locks.forget_others()
        while True:
            self._locks.keep(self._gpus_in_use())
            lease = decide(self._allocation())
            if lease is None or self._locks.take(lease.gpu_use(), whole=lease.gang.gpus_per_worker >= 1):
                return lease

    def _allocation(self) -> Allocation:
        gangs = tuple(request.gang for request in self._waiting)
        leases = tuple(request.lease for request in self._granted if request.lease is not None)
        limited = (gang for gang in (*gangs, *(lease.gang for lease in leases)) if gang.per_worker)
        return Allocation(
            inventory=inventory(*limited),
            leases=leases,
            requests=gangs,
            taken=self._locks.taken,
            shared=self._locks.shared,
        )

    def _gpus_in_use(self) -> set[str]:
        return {gpu for request in self._granted if request.lease is not None for gpu in request.lease.gpu_use()}


def inventory(*gangs: Gang) -> ResourceInventory:
    """Return how much this machine has of what these gangs need. GPUs are counted only if needed, as that is slow."""
    names = {name for gang in gangs for name in gang.per_worker}
    amounts = dict(logical_resources()) if names - {"CPU", "GPU", "memory"} else {}
    if "CPU" in names:
        amounts["CPU"] = hardware.num_cpus()
    if "memory" in names:
        amounts["memory"] = hardware.memory_bytes()
    return ResourceInventory(gpus=tuple(hardware.gpus()) if allocation.GPU in names else (), amounts=amounts)


def _shares_gpus(gang: Gang) -> bool:
    """Whether the gang's GPUs are assigned outside the broker: by HEADWAY_SHARE_GPUS or by an outer torchrun."""
    return bool(gang.gpus_per_worker) and (shares_gpus() or outer_ranks() is not None)


BROKER = Broker()  # one per process
os.register_at_fork(after_in_child=BROKER.on_fork)


class RunResources:
    """The resources of one run's workers, from request to release; see :class:`headway.engine.base.Resources`.

    Args:
        scaling: The scaling that the user requested.
        post: Puts an event into the engine's inbox; callable from any thread.
        in_process: Whether this process is the only worker.
    """

    def __init__(self, scaling: ScalingConfig, post: Callable[[object], None], *, in_process: bool = False) -> None:
        self._scaling = scaling
        self._post = post
        self._in_process = in_process
        self._request: Request | None = None
        self._forget()

    def _forget(self) -> None:
        self._limit = math.inf  # set by limit()
        self._could_launch = math.inf  # how many workers the last launch managed to start
        self.look_at: float | None = None  # when look() is due
        self._is_wait_announced = False

    # --- the contract ---

    def check(self) -> None:
        if self._scaling.placement_strategy == "STRICT_SPREAD" and self._scaling.min_workers > 1:
            raise ConfigError(
                f"placement_strategy='STRICT_SPREAD' needs {self._scaling.min_workers} machines, but there is only "
                "one: use 'SPREAD'"
            )
        limit, least = worker_limits.tightest_limit(), self._scaling.min_workers
        if not self._in_process and least > limit.max_workers:
            raise ConfigError(limit.refusal(least))
        gang = self._gang("")
        allocation.check(gang, inventory(gang))

    def request(self, owner: str) -> None:
        if self._request is not None:
            if self._request.lease is not None:
                self._post(ResourcesGrantedEvent())
            return
        request = self._request = Request(self._gang(owner), self._on_grant, in_process=self._in_process)
        self._abandon = weakref.finalize(self, BROKER.abandon, request)
        self._abandon.atexit = False
        try:
            BROKER.request(request)
            if request.lease is None:
                self._begin_wait(request)
        except BaseException:
            self.release()
            raise

    def _begin_wait(self, request: Request) -> None:
        gc.collect()  # engines that were dropped without being closed may hold what this request needs
        BROKER.look()
        if request.lease is None:
            BROKER.check_wait(request)
            self.look(time.monotonic())

    def num_available_workers(self) -> int:
        fits = min(len(self.gpus_of_workers), self._limit, self._could_launch)
        if fits < self._scaling.min_workers:
            raise EngineError(f"only {fits:g} of {self._scaling.min_workers} workers can run now")
        return int(fits)

    def limit(self, num_workers: int | None) -> None:
        self._limit = math.inf if num_workers is None else num_workers
        self._announce_capacity()

    def threads_per_worker(self, num_workers: int) -> int | None:
        return None if self._in_process else hardware.threads_per_worker(self._scaling, num_workers)

    # --- for engines ---

    @property
    def gpus_of_workers(self) -> tuple[tuple[str, ...], ...]:
        """The GPUs of each worker that may run; () while the request is waiting."""
        lease = self._request.lease if self._request is not None else None
        return lease.gpus if lease is not None else ()

    def on_launch_failed(self, index: int) -> None:
        """Handle a worker that could not be started: an elastic run launches fewer until the next capacity check."""
        if self._scaling.elasticity_enabled:
            self._could_launch = min(self._could_launch, max(1, index))

    def watch_capacity(self) -> None:
        """For elastic runs, start checking periodically whether more workers could run."""
        if self._scaling.elasticity_enabled and self.gpus_of_workers:
            self.look_at = time.monotonic() + self._scaling.elastic_resize_monitor_interval_s

    def look(self, now: float) -> None:
        """Check what has changed: GPUs that other programs released, and room for more workers."""
        self.look_at = None
        if self._request is None:
            return
        if self._request.lease is None:
            self._look_for_grant(self._request, now)
        elif self._scaling.elasticity_enabled:
            self.look_at = now + self._scaling.elastic_resize_monitor_interval_s
            self._could_launch = math.inf
            BROKER.grow(self._request, self._limit)
            self._announce_capacity()

    def _look_for_grant(self, request: Request, now: float) -> None:
        if request.gang.gpus_per_worker:
            self.look_at = now + LOOK_S
            BROKER.look()
        if request.lease is None and not self._is_wait_announced:
            self._is_wait_announced = True
            self._post(ResourcesAwaitedEvent(BROKER.waits_for(request)))

    def _on_grant(self) -> None:
        self.look_at = None
        self.watch_capacity()
        self._post(ResourcesGrantedEvent())

    def release(self) -> None:
        if self._request is not None:
            request, self._request = self._request, None
            self._abandon.detach()
            BROKER.release(request)
        self._forget()

    def _announce_capacity(self) -> None:
        fits = min(len(self.gpus_of_workers), self._limit, self._could_launch)
        self._post(CapacityEvent(int(fits) if fits >= self._scaling.min_workers else 0))

    def _gang(self, owner: str) -> Gang:
        gang = Gang.of(self._scaling, owner)
        most = 1 if self._in_process else max(gang.min_workers, worker_limits.tightest_limit().max_workers)
        return replace(gang, max_workers=min(gang.max_workers, most))
