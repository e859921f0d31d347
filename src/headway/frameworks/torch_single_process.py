"""A torch.distributed adapter that runs one of several ranks alone, for ``headway replay``.

The group claims to have all its ranks; every collective returns immediately, as if each rank had contributed this
rank's data. So a mean over ranks is this rank's value, and the gradients of a DDP model are this rank's gradients.
Data that only other ranks have (an object they broadcast, a tensor they send, their part of a sharded model) raises an
error.

torch's ``fake`` backend does not work here: its futures are empty, and DDP reads its gradients from them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.rendezvous import _rendezvous_handlers

from headway.core.errors import AloneError
from headway.core.messages import RankAssignment
from headway.frameworks.torch import meet_in, prepare
from headway.frameworks.torch_config import SingleProcessConfig

NAME = "headway_single"
SHARDED = (
    "replay runs only one rank, but a sharded model (FSDP, DTensor) needs the shards of all ranks: "
    "see the stacks and logs in the failure's directory instead"
)

Tensors = Sequence[torch.Tensor]


@contextlib.contextmanager
def joined(
    config: SingleProcessConfig, place: RankAssignment, rendezvous: str | None, *, lasting: bool
) -> Iterator[None]:
    """Create the group before the user's first line; groups that the user's code creates are of the same type."""
    before, hook = _rendezvous_handlers["env"], sys.excepthook
    prepare(place, rendezvous)
    meet_in(dist.HashStore(), place)  # type: ignore[attr-defined]
    dist.Backend.register_backend(
        NAME, lambda store, rank, size, timeout: SingleProcessGroup(rank, size), devices=["cpu", "cuda"]
    )
    with _replaced():
        if not config.by_script:
            dist.init_process_group(NAME)
        try:
            yield
        finally:
            _rendezvous_handlers["env"], sys.excepthook = before, hook
            if dist.is_initialized():
                dist.destroy_process_group()


_ProcessGroup: Any = dist.ProcessGroup  # its type hints describe calls from Python, but here C++ calls


class SingleProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """A group in which every rank has this rank's data. Method names cover the calls of several versions of torch."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def getGroupName(self) -> NoReturn:  # noqa: N802
        """Raise an error, because torch needs the name only to distribute a tensor over a mesh of ranks."""
        raise AloneError(SHARDED)

    # --- every rank gets the data of all ---

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        for tensor in tensors:
            _reduce(tensor, opts, self.size())
        return _done(tensors)

    def reduce(self, tensors: Tensors, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts) if opts.rootRank == self.rank() else _done(tensors)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Any:
        return _done(tensors)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        for slots, own in zip(outputs, inputs, strict=True):
            for slot in slots:
                _copy(own, slot)
        return _done([slot for slots in outputs for slot in slots])

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        return self.allgather(outputs, inputs) if outputs else _done(inputs)

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Any:
        """Gather into the consecutive parts of ``output``, whatever its shape."""
        return self.allgather([output.view(-1).chunk(self.size())], [own])

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        for output, own in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, own)
        return _done(outputs)

    def barrier(self, opts: Any = None) -> Any:
        return _done([])

    # --- every rank gets a part ---

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Any:
        for output, parts in zip(outputs, inputs, strict=True):
            _copy(parts[self.rank()], output)
            _reduce(output, opts, self.size())
        return _done(outputs)

    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter([output], [whole.reshape(-1).chunk(self.size())], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        for output, whole in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, whole, opts)
        return _done(outputs)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Any:
        if not inputs:
            _refuse("a tensor that another rank scatters")
        for output, parts in zip(outputs, inputs, strict=True):
            _copy(parts[self.rank()], output)
        return _done(outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        for output in outputs:
            if output.shape != inputs[self.rank()].shape:
                _refuse("parts of different sizes than its own, which other ranks send")
            _copy(inputs[self.rank()], output)
        return _done(outputs)

    def all_to_all_single(
        self, output: torch.Tensor, own: torch.Tensor, outputs: list[int], inputs: list[int], opts: Any = None
    ) -> Any:
        self.alltoall(_parts(output, outputs, self.size()), _parts(own, inputs, self.size()))
        return _done([output])

    # --- one rank gets another's data ---

    def send(self, tensors: Tensors, rank: int, tag: int) -> Any:
        return _done(tensors)

    def recv(self, tensors: Tensors, rank: int, tag: int) -> Any:
        _refuse(f"a tensor that rank {rank} of the group sends")

    def recv_anysource(self, tensors: Tensors, tag: int) -> Any:
        _refuse("a tensor that another rank sends")

    allreduce_coalesced = allreduce
    allgather_coalesced = allgather
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _reduce(tensor: torch.Tensor, opts: Any, size: int) -> None:
    """Apply the reduction over ranks that all have this tensor; a maximum or a mean leaves it unchanged."""
    operation = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
    with torch.no_grad():
        if operation == dist.ReduceOp.SUM and tensor.dtype is not torch.bool:
            tensor.mul_(size)
        elif operation == dist.ReduceOp.PRODUCT:
            tensor.pow_(size)
        elif operation == dist.ReduceOp.BXOR and size % 2 == 0:
            tensor.zero_()


def _parts(tensor: torch.Tensor, sizes: list[int], number: int) -> Tensors:
    parts: Tensors = torch.split(tensor, sizes) if sizes else tensor.chunk(number)
    return parts


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    with torch.no_grad():
        target.copy_(source.reshape(target.shape))


def _done(tensors: Tensors) -> Any:
    """Return completed work; DDP reads its gradients from the future."""
    devices: Any = sorted({tensor.device for tensor in tensors if tensor.is_cuda}, key=str)
    future: Any = torch.futures.Future(devices=devices)
    future.set_result(list(tensors))
    return _create_work_from_future(future)


def _refuse(what: str) -> NoReturn:
    raise AloneError(f"replay runs only one rank, but the function waits for {what}")


# --- torch functions that would create a different type of group, or read data that was never sent ---


def _init_process_group(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Create the group, ignoring the backend and the rendezvous that the user's code requests."""
    original(NAME)


def _new_group(original: Callable[..., Any], ranks: list[int] | None = None, *args: Any, **kwargs: Any) -> Any:
    return original(ranks)


def _broadcast_object_list(
    original: object, objects: list[Any], src: int | None = None, group: Any = None, *args: Any, **kwargs: Any
) -> None:
    """Refuse objects of a different rank: a rank would misread its own data as a length and allocate any amount."""
    if not _is_source(src, group, kwargs.get("group_src")):
        _refuse("an object that another rank broadcasts")


def _scatter_object_list(
    original: object,
    output: list[Any],
    objects: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
) -> None:
    if not _is_source(src, group, group_src) or objects is None:
        _refuse("an object that another rank scatters")
    output[0] = objects[dist.get_rank(group)]


def _is_source(src: int | None, group: Any, group_src: int | None) -> bool:
    return dist.get_rank() == (src or 0) if group_src is None else dist.get_rank(group) == group_src


def _monitored_barrier(original: object, *args: Any, **kwargs: Any) -> None:
    """Do nothing; only gloo implements this barrier."""


def _refuse_to_shard(*args: Any, **kwargs: Any) -> NoReturn:
    """Refuse the older FSDP, which never asks for the group's name and would use this rank's part for all ranks."""
    raise AloneError(SHARDED)


_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "init_process_group": _init_process_group,
    "new_group": _new_group,
    "broadcast_object_list": _broadcast_object_list,
    "scatter_object_list": _scatter_object_list,
    "monitored_barrier": _monitored_barrier,
}


@contextlib.contextmanager
def _replaced() -> Iterator[None]:
    before = {name: getattr(distributed_c10d, name) for name in _REPLACEMENTS}
    shard = FullyShardedDataParallel.__init__
    _set({name: functools.partial(function, before[name]) for name, function in _REPLACEMENTS.items()})
    FullyShardedDataParallel.__init__ = _refuse_to_shard  # type: ignore[method-assign]
    try:
        yield
    finally:
        _set(before)
        FullyShardedDataParallel.__init__ = shard  # type: ignore[method-assign]


def _set(functions: dict[str, Callable[..., Any]]) -> None:
    for name, function in functions.items():
        setattr(dist, name, function)
        setattr(distributed_c10d, name, function)
