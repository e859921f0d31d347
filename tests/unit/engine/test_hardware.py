"""Feasibility is arithmetic."""

from __future__ import annotations

import pytest

from headway.core.config import ScalingConfig
from headway.core.errors import ConfigError
from headway.engine import hardware


@pytest.fixture(autouse=True)
def a_machine_of_eight_cores_and_four_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "num_cpus", lambda: 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")


def test_how_many_fit() -> None:
    assert hardware.room(ScalingConfig(100)) == 100, "more processes than cores is slow, not impossible"
    assert hardware.room(ScalingConfig((1, 100), resources_per_worker={"CPU": 3})) == 2
    assert hardware.room(ScalingConfig((1, 100), use_gpu=True)) == 4
    assert hardware.room(ScalingConfig((1, 100), resources_per_worker={"GPU": 0.5})) == 8
    assert hardware.room(ScalingConfig((1, 100), resources_per_worker={"GPU": 0.4})) == 8
    assert hardware.room(ScalingConfig((1, 100), resources_per_worker={"GPU": 2})) == 2


@pytest.mark.parametrize(
    ("scaling", "sentence"),
    [
        (ScalingConfig(5, use_gpu=True), "the run needs 5 GPUs (5 workers × 1), this machine has 4"),
        (ScalingConfig(1, resources_per_worker={"GPU": 5}), "the run needs 5 GPUs, this machine has 4"),
        (ScalingConfig(3, resources_per_worker={"CPU": 3}), "the run needs 9 CPUs (3 workers × 3), this machine has 8"),
        (ScalingConfig(1, resources_per_worker={"memory": 1e18}), "the run needs 1e+18 bytes of memory"),
    ],
)
def test_what_does_not_fit_is_said_at_once(scaling: ScalingConfig, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hardware.room(scaling)
    assert str(caught.value).startswith(sentence)


def test_cards_are_dealt_out() -> None:
    assert hardware.deal_gpus(ScalingConfig(2), 2) == [[], []]
    assert hardware.deal_gpus(ScalingConfig(2, use_gpu=True), 2) == [["0"], ["1"]]
    assert hardware.deal_gpus(ScalingConfig(2, resources_per_worker={"GPU": 2}), 2) == [["0", "1"], ["2", "3"]]
    assert hardware.deal_gpus(ScalingConfig(4, resources_per_worker={"GPU": 0.5}), 4) == [["0"], ["0"], ["1"], ["1"]]


def test_threads_are_dealt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hardware.threads_per_worker(ScalingConfig(2), 2) == 4
    assert hardware.threads_per_worker(ScalingConfig(20), 20) == 1
    assert hardware.threads_per_worker(ScalingConfig(2, resources_per_worker={"CPU": 3}), 2) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert hardware.threads_per_worker(ScalingConfig(2), 2) is None
