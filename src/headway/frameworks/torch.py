"""The adapter for torch.distributed: it forms a process group from the ranks without opening a port.

On one machine, all ranks use a store in an in-memory file (``rendezvous``, a path in ``/proc/self/fd``); a single rank
uses a plain table. ``TCPStore`` would listen on every interface, whatever address it is given.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers

from headway.core.messages import RankAssignment
from headway.frameworks.torch_config import TorchConfig, TorchScriptConfig
from headway.frameworks.torch_sync_check import notice_separate_models

# Every group that this process created, kept until it ends: destroying a group and collecting it while a DDP model
# still exists hangs about one worker in ten.
_kept: list[Any] = []


@contextlib.contextmanager
def joined(config: TorchConfig, place: RankAssignment, rendezvous: str | None, *, lasting: bool) -> Iterator[None]:
    """Create the process group before the user's first line; a persistent worker keeps its existing one."""
    backend = config.backend or default_backend(place)
    before, hook = _rendezvous_handlers["env"], sys.excepthook
    if again := bool(_kept):
        _environment(place)
    else:
        prepare(place, rendezvous)
    if not dist.is_initialized():
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=config.timeout_s))
    if not lasting and not again:
        _keep_groups()
    try:
        with notice_separate_models(place, lambda: num_collectives()[0]):
            yield
    finally:
        if lasting:
            _rendezvous_handlers["env"], sys.excepthook = before, hook
        if lasting and dist.is_initialized():
            dist.destroy_process_group()


@contextlib.contextmanager
def prepared(
    config: TorchScriptConfig, place: RankAssignment, rendezvous: str | None, *, lasting: bool
) -> Iterator[None]:
    """Prepare a process for a script that calls ``init_process_group`` itself."""
    prepare(place, rendezvous)
    _keep_groups()
    with notice_separate_models(place, lambda: num_collectives()[0]):
        yield


def _keep_groups() -> None:
    """Keep the current group alive, and any group with which the user's code replaces it."""
    init = dist.init_process_group

    @functools.wraps(init)
    def init_and_keep(*args: Any, **kwargs: Any) -> None:
        init(*args, **kwargs)
        _kept.append(dist.group.WORLD)

    if dist.is_initialized():
        _kept.append(dist.group.WORLD)
    dist.init_process_group = init_and_keep


def num_collectives() -> tuple[int, int]:
    """Count the collectives started so far: in all groups together, and in the group of all ranks. Pure."""
    if not dist.is_initialized():
        return 0, 0
    with contextlib.suppress(RuntimeError):  # raised by a backend that does not count
        groups: list[Any] = list(dist.distributed_c10d._world.pg_map)
        world: Any = dist.group.WORLD
        if world is None:  # a different thread destroyed it since the check
            return 0, 0
        return sum(group._get_sequence_number_for_group() for group in groups), world._get_sequence_number_for_group()
    return 0, 0


def default_backend(place: RankAssignment) -> str:
    """Return nccl if each rank has its own GPU, which nccl needs; otherwise gloo."""
    shared = len(place.visible_gpus) < place.local_world_size
    return "nccl" if place.gpus and not shared else "gloo"


def device_of(place: RankAssignment) -> torch.device:
    return torch.device("cuda", place.gpus[0]) if place.gpus else torch.device("cpu")


def devices_of(place: RankAssignment) -> list[torch.device]:
    return [torch.device("cuda", index) for index in place.gpus] or [torch.device("cpu")]


def prepare(place: RankAssignment, rendezvous: str | None) -> None:
    """Set up this process for a group that Headway or the user's code creates next."""
    _environment(place)
    if place.num_threads is not None:
        torch.set_num_threads(place.num_threads)
    if place.gpus:
        torch.cuda.set_device(device_of(place))
    if rendezvous is not None:
        meet_in(dist.FileStore(rendezvous, place.world_size), place)  # type: ignore[attr-defined]
    elif place.world_size == 1:
        meet_in(dist.HashStore(), place)  # type: ignore[attr-defined]


def _environment(place: RankAssignment) -> None:
    os.environ["ACCELERATE_TORCH_DEVICE"] = str(device_of(place))
    # For Lightning and others, this variable means that a launcher has assigned the ranks.
    os.environ.setdefault("TORCHELASTIC_RUN_ID", "headway")
    if place.world_size > 1:
        for name, value in _lightning_defaults(place).items():
            os.environ.setdefault(f"PL_TRAINER_{name}", value)
        if not place.gpus:  # otherwise, Accelerator() sees no GPU and trains alone
            os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    if place.gpus:
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if place.num_nodes == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def _lightning_defaults(place: RankAssignment) -> dict[str, str]:
    """Return defaults for Lightning's ``Trainer()``, which would otherwise see one CPU and train alone."""
    found = {"NUM_NODES": str(place.num_nodes)}
    if not place.gpus:
        return {**found, "ACCELERATOR": "cpu", "DEVICES": str(place.local_world_size)}
    if len(place.visible_gpus) >= place.local_world_size:
        return {**found, "DEVICES": str(place.local_world_size)}
    return found


def meet_in(store: Any, place: RankAssignment) -> None:
    """Make ``env://`` resolve to this store, here and in the user's code, with a different prefix per rendezvous."""
    count = itertools.count()

    def meet(url: str, *args: object, **kwargs: object) -> Iterator[tuple[Any, int, int]]:
        prefixed = dist.PrefixStore(f"meeting-{next(count)}", store)  # type: ignore[attr-defined]
        yield prefixed, place.rank, place.world_size

    _rendezvous_handlers["env"] = meet
