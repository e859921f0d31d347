"""The number of threads of each worker."""

from __future__ import annotations

import ctypes
import functools
from types import SimpleNamespace
from typing import Any

import pytest

from headway.core.config import ScalingConfig
from headway.engine.resources import hardware


def test_the_gpu_driver_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = iter([1, 0])  # it fails the first time

    def set_to(pointer: Any, value: int) -> int:
        pointer._obj.value = value
        return 0

    def set_uuid(handle: ctypes.c_void_p, uuid: Any, size: object) -> int:
        uuid.value = f"GPU-{handle.value}".encode()
        return 0

    driver = SimpleNamespace(
        nvmlInit_v2=lambda: next(starts),
        nvmlDeviceGetCount_v2=lambda count: set_to(count, 2),
        nvmlDeviceGetHandleByIndex_v2=lambda index, handle: set_to(handle, index.value + 1),
        nvmlDeviceGetUUID=set_uuid,
        nvmlShutdown=lambda: 0,
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(hardware, "_found_gpu_uuids", functools.cache(hardware._found_gpu_uuids.__wrapped__))
    assert hardware.gpus() == []
    assert hardware.gpus() == hardware.gpus() == ["0", "1"]
    assert hardware.gpu_uuids() == ("GPU-1", "GPU-2")


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "num_cpus", lambda: 8)
    assert hardware.threads_per_worker(ScalingConfig(2), 2) == 4
    assert hardware.threads_per_worker(ScalingConfig(20), 20) == 1
    assert hardware.threads_per_worker(ScalingConfig(2, resources_per_worker={"CPU": 3}), 2) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert hardware.threads_per_worker(ScalingConfig(2), 2) is None
