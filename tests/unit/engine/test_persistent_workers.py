"""What one run of persistent workers posts does not reach the next one."""

from __future__ import annotations

from headway.core.config import ScalingConfig
from headway.core.messages import ResourcesGrantedEvent, StopEvent
from headway.engine.persistent_workers import PersistentEngine


def test_events_that_were_posted_to_a_run_that_is_closed_are_forgotten() -> None:
    engine = PersistentEngine(ScalingConfig(num_workers=1))
    first: list[object] = []
    second: list[object] = []
    try:
        engine.open(first.extend)
        engine.post(StopEvent())
        engine.close()
        engine.resources.request("second")
        engine.open(second.extend)
        engine.pump(30)
        assert (first, second) == ([], [ResourcesGrantedEvent()])
    finally:
        engine.shut_down()
