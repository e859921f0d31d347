"""Interrupts reach the run that they are meant for, and no idle worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from headway.worker.process import interrupt_guard


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    interrupt_guard.install_interrupt_handler()
    yield
    interrupt_guard.ignore_interrupts()
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_while_a_message_is_sent_is_raised_afterwards() -> None:
    with interrupt_guard.speaking:
        interrupt()
    with pytest.raises(KeyboardInterrupt):
        interrupt_guard.raise_pending_interrupt()
    interrupt_guard.raise_pending_interrupt()


def test_an_interrupt_that_was_delayed_in_one_run_is_not_raised_in_the_next() -> None:
    with interrupt_guard.speaking:
        interrupt()
    assert interrupt_guard._pending
    interrupt_guard.install_interrupt_handler()
    interrupt_guard.raise_pending_interrupt()
    assert not interrupt_guard._pending


def test_idle_workers_ignore_interrupts_until_their_next_run() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as user code may do
    interrupt_guard.ignore_interrupts()
    interrupt()
    with interrupt_guard.speaking:
        interrupt()
    interrupt_guard.raise_pending_interrupt()
    interrupt_guard.install_interrupt_handler()
    interrupt_guard.raise_pending_interrupt()
    with pytest.raises(KeyboardInterrupt):
        interrupt()
