"""The queue of one program, and the locks between programs; no process is started."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.core.config import ScalingConfig
from headway.core.errors import ConfigError, EngineError
from headway.core.messages import CapacityEvent, ResourcesAwaitedEvent, ResourcesGrantedEvent
from headway.engine.resources import broker
from headway.engine.resources.broker import RunResources

made: list[RunResources] = []


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setenv("HEADWAY_RESOURCES", json.dumps({"licence": 2}))
    monkeypatch.setattr(broker, "LOOK_S", 0.01)
    yield
    while made:
        made.pop().release()


class Asker:
    """A run that requests resources and records the events."""

    def __init__(self, num_workers: int | tuple[int, int] = 1, owner: str = "run", **per_worker: float) -> None:
        self.events: list[object] = []
        scaling = ScalingConfig(num_workers, resources_per_worker=per_worker or None)
        self.resources = RunResources(scaling, self.events.append)
        made.append(self.resources)
        self.resources.request(owner)

    @property
    def gpus(self) -> list[str]:
        return [gpu for gpus in self.resources.gpus_of_workers for gpu in gpus]

    @property
    def granted(self) -> bool:
        return ResourcesGrantedEvent() in self.events


def locks() -> list[str]:
    return [name for name in os.listdir(os.environ["HEADWAY_MEMORY_DIR"]) if name.startswith("headway-gpu-")]


def test_a_run_that_must_wait_is_granted_when_another_releases() -> None:
    first, second = Asker(3, "first", GPU=1), Asker(2, "second", GPU=1)
    assert first.granted
    assert first.gpus == ["0", "1", "2"]
    assert second.events == [
        ResourcesAwaitedEvent("waiting for 2 GPUs (2 workers × 1): 1 of 4 free (first: GPU 0, 1, 2)")
    ]
    thread = threading.Thread(target=first.resources.release)
    thread.start()
    thread.join()
    assert second.granted
    assert second.gpus == ["0", "1"]
    second.resources.release()
    assert locks() == []


def test_a_run_that_stops_waiting_lets_the_next_one_pass() -> None:
    first, second, third = Asker(3, GPU=1), Asker(4, GPU=1), Asker(1, GPU=1)
    assert not second.granted
    assert not third.granted
    second.resources.release()
    assert third.granted
    assert third.gpus == ["3"]
    first.resources.release()
    assert not second.granted


def test_what_a_forgotten_run_holds_is_released() -> None:
    forgotten = RunResources(ScalingConfig(4, use_gpu=True), [].append)
    forgotten.request("forgotten")
    waiting = Asker(1, GPU=1)
    assert not waiting.granted
    del forgotten
    gc.collect()
    until = time.monotonic() + 20
    while not waiting.granted:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_run_that_must_wait_looks_for_forgotten_runs_first() -> None:
    class Engine:
        def __init__(self) -> None:
            self.resources = RunResources(ScalingConfig(4, use_gpu=True), self.post)  # a reference cycle

        def post(self, event: object) -> None:
            pass

    gc.disable()
    try:
        Engine().resources.request("forgotten")
        assert Asker(1, GPU=1).events == [ResourcesGrantedEvent()]
    finally:
        gc.enable()


def test_a_request_that_fails_is_not_left_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    other = OtherProgram(3)
    with monkeypatch.context() as patch:
        patch.setenv("HEADWAY_WORKER", "1")
        with pytest.raises(EngineError):
            Asker(4, GPU=1)
    assert Asker(1, GPU=1).granted, "an older request would come first"
    other.end()


def test_asking_again_confirms_what_is_held() -> None:
    asker = Asker(2, GPU=1)
    asker.resources.request("run")
    assert asker.events == [ResourcesGrantedEvent()] * 2
    assert len(locks()) == 2


def test_custom_resources_are_counted() -> None:
    first, second = Asker(1, licence=2), Asker(1, licence=1)
    assert first.granted
    assert not second.granted
    first.resources.release()
    assert second.granted
    with pytest.raises(ConfigError, match="needs 3 'licence', this machine has 2"):
        RunResources(ScalingConfig(1, resources_per_worker={"licence": 3}), print).check()


def test_cpus_are_counted_for_runs_that_declare_them_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.hardware, "num_cpus", lambda: 2)
    assert all(Asker(4).granted for _ in range(3))
    declared = Asker(2, CPU=1), Asker(1, CPU=1)
    assert [each.granted for each in declared] == [True, False]


def test_a_machine_with_shared_gpus_assigns_them_to_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_SHARE_GPUS", "1")
    first, second = Asker(4, GPU=1), Asker(4, GPU=1)
    assert first.gpus == second.gpus == ["0", "1", "2", "3"]
    assert locks() == []


HOLDER = """
import sys
from headway.core.config import ScalingConfig
from headway.engine.resources.broker import RunResources

resources = RunResources(ScalingConfig(1, resources_per_worker={"GPU": float(sys.argv[1])}), print)
resources.request("other")
print("held", flush=True)
sys.stdin.readline()
resources.release()
"""


class OtherProgram:
    def __init__(self, gpus: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(gpus)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        while "held" not in self._process.stdout.readline():
            pass

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        self._process.communicate("end")


def test_gpus_of_another_program_are_waited_for() -> None:
    other = OtherProgram(3)
    asker = Asker(2, GPU=1)
    (event,) = asker.events
    assert isinstance(event, ResourcesAwaitedEvent)
    assert event.text.startswith("waiting for 2 GPUs (2 workers × 1): 1 of 4 free (process")
    assert f"process {other.pid}" in event.text
    assert "GPU 0, 1, 2" in event.text
    assert Asker(1, licence=1).granted
    other.end()
    until = time.monotonic() + 10
    while not asker.granted:
        assert asker.resources.look_at is not None
        assert time.monotonic() < until
        asker.resources.look(time.monotonic())
    assert asker.gpus == ["0", "1"]


def test_a_run_inside_a_worker_does_not_wait_for_what_the_outer_run_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    outer = OtherProgram(4)
    monkeypatch.setenv("HEADWAY_WORKER", "1")
    with pytest.raises(EngineError, match=r"a run inside a worker cannot wait .*waiting for 1 GPU: 0 of 4 free"):
        Asker(1, GPU=1)
    outer.end()
    assert Asker(1, GPU=1).granted


def test_a_run_inside_an_inline_run_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scaling = ScalingConfig(1, resources_per_worker={"licence": 2})
    outer = RunResources(scaling, [].append, in_process=True)
    made.append(outer)
    outer.request("outer")
    monkeypatch.setenv("HEADWAY_WORKER", "1")
    with pytest.raises(EngineError, match=r"cannot wait for what the outer run may hold .*0 of 2 free \(outer: 2\)"):
        Asker(1, licence=1)


def test_a_run_inside_a_worker_waits_for_a_run_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_WORKER", "1")
    for needs in ({"licence": 2}, {"GPU": 4}):
        first, second = Asker(1, "first", **needs), Asker(1, "second", **needs)
        assert isinstance(second.events[0], ResourcesAwaitedEvent)
        first.resources.release()
        assert second.granted
        second.resources.release()


def test_parts_of_gpus_of_another_program_come_last() -> None:
    other = OtherProgram(0.5)
    parts = [Asker(1, GPU=0.5) for _ in range(4)]
    assert [each.gpus for each in parts] == [["1"], ["2"], ["3"], ["1"]], "idle ones first, then our own"
    whole = Asker(1, GPU=1)
    assert not whole.granted
    other.end()
    whole.resources.look(time.monotonic())
    assert whole.gpus == ["0"]


def test_a_waiting_run_cannot_convert_a_part_that_this_program_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    part, other = Asker(1, "part", GPU=0.5), OtherProgram(0.5)
    whole = Asker(1, "whole", GPU=1)
    thread = threading.Thread(target=part.resources.release, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "the broker tries to lock the same GPU again and again"
    assert not whole.granted
    other.end()
    whole.resources.look(time.monotonic())
    assert whole.gpus == ["0"]


def test_the_lock_of_a_newer_user_is_not_removed() -> None:
    asker, (name,) = Asker(1, GPU=0.5), locks()
    path = Path(os.environ["HEADWAY_MEMORY_DIR"], name)
    path.unlink()  # as another program does when it was the last user of the file for a moment
    other = OtherProgram(1)
    asker.resources.release()
    assert locks() == [name], "two programs would have the GPU"
    other.end()
    assert locks() == []


def test_a_gpu_whose_lock_cannot_be_opened_is_not_used() -> None:
    lock = Path(os.environ["HEADWAY_MEMORY_DIR"], "headway-gpu-number-0.lock")
    lock.mkdir()
    assert Asker(3, GPU=1).gpus == ["1", "2", "3"]
    with pytest.raises(EngineError, match=r"headway-gpu-number-0.lock, the lock of a GPU, cannot be opened .*: remove"):
        Asker(1, GPU=1)
    lock.rmdir()
    assert Asker(1, GPU=1).gpus == ["0"]


def test_a_lock_that_cannot_be_opened_concerns_only_the_run_that_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    other = OtherProgram(1)
    licence, waiting, next_licence = Asker(1, licence=2), Asker(1, "waiting", GPU=1), Asker(1, licence=1)
    other.end()
    lock = Path(os.environ["HEADWAY_MEMORY_DIR"], "headway-gpu-number-0.lock")
    lock.mkdir()
    licence.resources.release()
    assert next_licence.granted
    waiting.resources.look(time.monotonic())
    assert not waiting.granted
    lock.rmdir()
    waiting.resources.look(time.monotonic())
    assert waiting.gpus == ["0"]


def test_the_error_of_a_waiting_run_does_not_reach_one_that_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    first, waiting = Asker(4, GPU=1), Asker(1, licence=2)
    another = Asker(1, licence=1)
    monkeypatch.setenv("HEADWAY_RESOURCES", "nonsense")
    first.resources.release()
    monkeypatch.setenv("HEADWAY_RESOURCES", json.dumps({"licence": 2}))
    waiting.resources.release()
    assert another.granted


def test_an_elastic_run_takes_what_is_free_and_grows() -> None:
    first, elastic = Asker(3, GPU=1), Asker((1, 4), GPU=1)
    assert elastic.gpus == ["3"]
    assert elastic.resources.num_available_workers() == 1
    first.resources.release()
    elastic.resources.look(time.monotonic())
    assert elastic.events[-1] == CapacityEvent(4)
    assert elastic.resources.num_available_workers() == 4


def test_a_limited_run_does_not_grow_beyond_its_limit() -> None:
    first, elastic = Asker(3, GPU=1), Asker((1, 4), GPU=1)
    elastic.resources.limit(2)
    first.resources.release()
    elastic.resources.look(time.monotonic())
    assert len(elastic.gpus) == 2
    assert Asker(2, GPU=1).granted


def test_a_limit_counts_whatever_is_free() -> None:
    elastic = Asker((2, 4), GPU=1)
    elastic.resources.limit(3)
    assert elastic.resources.num_available_workers() == 3
    elastic.resources.limit(1)
    assert elastic.events[-2:] == [CapacityEvent(3), CapacityEvent(0)]
    with pytest.raises(EngineError, match="only 1 of 2 workers can run now"):
        elastic.resources.num_available_workers()
    elastic.resources.limit(None)
    assert elastic.resources.num_available_workers() == 4


def test_a_request_after_a_release_starts_afresh() -> None:
    holder, asker = Asker(1, licence=2), Asker((1, 2), licence=1)
    (announced,) = asker.events
    asker.resources.release()
    holder.resources.release()
    asker.resources.request("run")
    asker.resources.limit(1)
    asker.resources.on_launch_failed(1)
    asker.resources.watch_capacity()
    asker.resources.release()
    assert asker.resources.look_at is None
    holder = Asker(1, licence=2)
    asker.events.clear()
    asker.resources.request("run")
    assert asker.events == [announced]
    holder.resources.release()
    assert asker.resources.num_available_workers() == 2


def test_a_process_that_is_forked_while_another_thread_looks_can_request(monkeypatch: pytest.MonkeyPatch) -> None:
    is_looking, may_end = threading.Event(), threading.Event()

    def slow_num_cpus() -> int:
        is_looking.set()
        may_end.wait()
        return 8

    with monkeypatch.context() as patch:
        patch.setattr(broker.hardware, "num_cpus", slow_num_cpus)
        thread = threading.Thread(target=lambda: Asker(1, CPU=1))
        thread.start()
        is_looking.wait()
    if (pid := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.alarm(10)
        os._exit(0 if Asker(1).granted else 1)
    may_end.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_process_holds_nothing() -> None:
    asker = Asker(4, GPU=1)
    if (pid := os.fork()) == 0:
        try:
            child = Asker(1, GPU=1)
            os._exit(0 if not child.granted and len(locks()) == 4 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(locks()) == 4
    asker.resources.release()
    assert locks() == []
