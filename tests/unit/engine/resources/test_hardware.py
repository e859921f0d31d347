"""The number of threads of each worker."""

from __future__ import annotations

import pytest

from headway.core.config import ScalingConfig
from headway.engine.resources import hardware


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "num_cpus", lambda: 8)
    assert hardware.threads_per_worker(ScalingConfig(2), 2) == 4
    assert hardware.threads_per_worker(ScalingConfig(20), 20) == 1
    assert hardware.threads_per_worker(ScalingConfig(2, resources_per_worker={"CPU": 3}), 2) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert hardware.threads_per_worker(ScalingConfig(2), 2) is None
