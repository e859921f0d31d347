"""A process group of several ranks with one rank in it, which acts as if all ranks had this rank's data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headway.core.errors import AloneError
from headway.core.messages import RankAssignment
from headway.frameworks.base import BackendConfig, join
from headway.frameworks.torch_config import SingleProcessConfig, TorchConfig, TorchScriptConfig

RANK, SIZE = 1, 3
PLACE = RankAssignment(rank=RANK, world_size=SIZE, local_rank=RANK, local_world_size=SIZE)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch sets it when DDP takes its first step
    of_torch = ("TORCHELASTIC_RUN_ID", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    of_accelerate = ("ACCELERATE_TORCH_DEVICE", "ACCELERATE_USE_CPU")
    of_lightning = ("PL_TRAINER_ACCELERATOR", "PL_TRAINER_DEVICES", "PL_TRAINER_NUM_NODES")
    for name in (*of_torch, *of_accelerate, *of_lightning):
        monkeypatch.setenv(name, "")  # the group sets them, and a replay does not restore them
    with join(SingleProcessConfig(), PLACE, None, lasting=True):
        yield
    assert not dist.is_initialized()


def test_every_config_of_torch_has_one_for_a_single_process() -> None:
    assert TorchConfig(backend="nccl").for_single_process() == SingleProcessConfig()
    assert TorchScriptConfig().for_single_process() == SingleProcessConfig(by_script=True)
    assert BackendConfig().for_single_process() == BackendConfig()


@pytest.mark.usefixtures("group")
def test_the_rank_keeps_its_number() -> None:
    assert (dist.get_rank(), dist.get_world_size()) == (RANK, SIZE)
    pair = dist.new_group([0, RANK], backend="gloo")
    assert (dist.get_rank(pair), dist.get_world_size(pair)) == (1, 2)
    assert dist.new_group([0, 2]) == dist.GroupMember.NON_GROUP_MEMBER


@pytest.mark.usefixtures("group")
def test_gradients_of_a_ddp_model_are_this_ranks_own() -> None:
    plain = nn.Linear(2, 1)
    model = DistributedDataParallel(nn.Linear(2, 1))
    model.module.load_state_dict(plain.state_dict())
    inputs = torch.tensor([[3.0, 5.0]])
    for each in (plain, model):
        each(inputs).sum().backward()
    assert torch.equal(model.module.weight.grad, plain.weight.grad)


@pytest.mark.usefixtures("group")
def test_a_mean_is_this_ranks_own_value_and_a_sum_that_of_all() -> None:
    for operation, expected in {
        dist.ReduceOp.SUM: 6.0,
        dist.ReduceOp.AVG: 2.0,
        dist.ReduceOp.MAX: 2.0,
        dist.ReduceOp.PRODUCT: 8.0,
    }.items():
        tensor = torch.tensor([2.0])
        work = dist.all_reduce(tensor, op=operation, async_op=True)
        assert work is not None
        work.wait()
        assert tensor.item() == expected


def gathered() -> list[Any]:
    slots = [torch.empty(2) for _ in range(SIZE)]
    dist.all_gather(slots, torch.tensor([1.0, 2.0]))
    return [slot.tolist() for slot in slots]


def gathered_into_one() -> list[Any]:
    output = torch.empty(1, 2 * SIZE)  # as SyncBatchNorm does it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer versions call it all_gather_single
        dist.all_gather_into_tensor(output, torch.tensor([[1.0, 2.0]]))
    return output.tolist()


def gathered_objects() -> list[Any]:
    found: list[Any] = [None] * SIZE
    dist.all_gather_object(found, {"rank": RANK})
    return found


def scattered() -> list[Any]:
    output = torch.empty(1)
    dist.reduce_scatter(output, [torch.tensor([float(part)]) for part in range(SIZE)], op=dist.ReduceOp.MAX)
    return output.tolist()


def exchanged() -> list[Any]:
    output = torch.empty(SIZE)
    dist.all_to_all_single(output, torch.arange(float(SIZE)))
    return output.tolist()


def broadcast() -> list[Any]:
    tensor = torch.tensor([7.0])
    dist.broadcast(tensor, src=0)
    return tensor.tolist()


def own_objects() -> list[Any]:
    objects = ["mine"]
    dist.broadcast_object_list(objects, src=RANK)
    return objects


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (gathered, [[1.0, 2.0]] * SIZE),
        (gathered_into_one, [[1.0, 2.0] * SIZE]),
        (gathered_objects, [{"rank": RANK}] * SIZE),
        (scattered, [float(RANK)]),
        (exchanged, [float(RANK)] * SIZE),
        (broadcast, [7.0]),
        (own_objects, ["mine"]),
        (dist.barrier, None),
    ],
)
def test_collectives_return_at_once(operation: Callable[[], Any], expected: Any) -> None:
    assert operation() == expected


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (lambda: dist.recv(torch.empty(1), src=0), "a tensor that rank 0 of the group sends"),
        (lambda: dist.scatter(torch.empty(1), None, src=0), "a tensor that another rank scatters"),
        (lambda: dist.broadcast_object_list([None], src=0), "an object that another rank broadcasts"),
        (lambda: dist.device_mesh.init_device_mesh("cpu", (SIZE,)), "a sharded model"),
    ],
)
def test_what_only_another_rank_has_is_refused_in_words(operation: Callable[[], Any], reason: str) -> None:
    with pytest.raises(AloneError, match=reason):
        operation()
