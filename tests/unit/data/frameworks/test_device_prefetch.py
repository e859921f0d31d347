"""Batches on their way to a device; copies on a CUDA stream are tested in tests/process/test_gpus.py."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import torch

from headway.data.frameworks.device_prefetch import moved, one_by_one, tensors_in

META = torch.device("meta")  # a device that every machine has, and that is not the CPU


class Pair(NamedTuple):
    x: Any
    y: Any


class Graph:
    """An object that moves itself."""

    def __init__(self, edges: torch.Tensor) -> None:
        self.edges = edges

    def to(self, device: torch.device) -> Graph:
        return Graph(self.edges.to(device))


def test_every_tensor_of_a_batch_is_moved_and_its_form_stays() -> None:
    batch = {"a": [torch.zeros(2), "text"], "b": Pair(torch.zeros(1), 3), "c": OrderedDict(d=torch.zeros(1))}
    found = moved(batch, META)
    assert {tensor.device for tensor in tensors_in(found)} == {META}
    assert found["a"][1] == "text"
    assert (type(found["b"]), found["b"].y, type(found["c"])) == (Pair, 3, OrderedDict)
    assert batch["a"][0].device.type == "cpu"


def test_an_object_that_moves_itself_is_asked_to() -> None:
    assert moved(Graph(torch.zeros(2)), META).edges.device == META
    assert len(list(tensors_in(Graph(torch.zeros(2))))) == 1


def test_batches_are_moved_as_they_are_taken() -> None:
    batches = iter([torch.zeros(1), torch.zeros(2)])
    found = one_by_one(batches, META)
    assert next(found).device == META
    assert next(batches).device.type == "cpu"
