"""Numbers of workers that no machine like this one can run; no process is started."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from headway.core.config import ScalingConfig
from headway.core.errors import ConfigError
from headway.engine.resources import hardware, worker_limits
from headway.engine.resources.broker import RunResources


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    monkeypatch.setattr(hardware, "memory_bytes", lambda: 1 << 60)
    monkeypatch.setattr(worker_limits, "_number", lambda file: None)


def check(num_workers: int | tuple[int, int]) -> None:
    RunResources(ScalingConfig(num_workers), print).check()


def refusal(num_workers: int | tuple[int, int]) -> str:
    with pytest.raises(ConfigError) as caught:
        check(num_workers)
    return str(caught.value)


def test_memory_limits_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "memory_bytes", lambda: 80 << 20)
    check(10)
    check((1, 1000))
    assert refusal(11) == (
        "num_workers=11 needs at least 92.3 MB of memory (11 workers × 8.4 MB), this machine has 83.9 MB: "
        "lower num_workers to 10 or less"
    )
    assert refusal((11, 1000)).startswith("num_workers=11 needs")


def test_files_limit_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        resource, "getrlimit", lambda kind: (1024, 4096) if kind == resource.RLIMIT_NOFILE else (-1, -1)
    )
    check(1024)
    assert refusal(100_000) == (
        "num_workers=100000 needs at least 100000 open files (100000 workers × 1), ulimit -n allows 1024: "
        "lower num_workers to 1024 or less"
    )


def test_a_users_processes_limit_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (300, 300) if kind == resource.RLIMIT_NPROC else (-1, -1))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    check(100)
    assert refusal(101).endswith(
        "303 processes and threads (101 workers × 3), ulimit -u allows 300: lower num_workers to 100 or less"
    )
    monkeypatch.setattr("os.geteuid", lambda: 0)
    check(101)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("/proc/sys/kernel/pid_max", "kernel.pid_max allows 32768"),
        ("/proc/sys/kernel/threads-max", "kernel.threads-max allows 32768"),
        ("/sys/fs/cgroup/pids.max", "the container or control group may have 32768"),
    ],
)
def test_the_kernel_limits_the_number_of_workers(file: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_limits, "_number", lambda found: 32768 if found == Path(file) else None)
    assert f", {reason}: lower num_workers to 10922 or less" in refusal(100_000)


def test_a_container_limits_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {
        Path("/sys/fs/cgroup/memory.max"): 80 << 20,
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"): 80 << 20,
    }
    monkeypatch.setattr(worker_limits, "_number", limits.get)
    assert "the container or control group may use 83.9 MB: lower num_workers to 10 or less" in refusal(11)


def test_an_elastic_run_starts_no_more_workers_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "memory_bytes", lambda: 80 << 20)
    elastic = RunResources(ScalingConfig((1, 1000)), [].append)
    elastic.request("elastic")
    assert elastic.num_available_workers() == 10
    elastic.release()


def test_a_run_in_this_process_is_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "memory_bytes", lambda: 1)
    RunResources(ScalingConfig(1), print, in_process=True).check()
