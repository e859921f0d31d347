"""The engine for this machine: processes forked by a fork server, and messages over inherited sockets, not ports."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from headway.core.config import ScalingConfig
from headway.core.errors import EngineError
from headway.core.messages import LOST_EXIT_CODE, FromWorker, Ready, ToController, ToWorker, WorkerExited
from headway.engine.base import Deliver
from headway.engine.channel import Channel, Channels
from headway.engine.fork_server import Exited, Fork, Signal
from headway.engine.fork_server_client import ForkSession, end_groups
from headway.engine.inbox import Inbox
from headway.engine.one_shot_process import ForkedOneShotProcess
from headway.engine.process_stats import OutsideStacks, ProcessStats, ProcessTable, ProcessTree, exit_code_of_zombie
from headway.engine.resources import hardware
from headway.engine.resources.broker import RunResources

PATIENCE_S = 0.5  # how long the fork server may take to report the exit of a worker that it was asked to kill
DYING_S = 5.0  # how long a worker may take to exit after SIGKILL before its resources are released

_READ = selectors.EVENT_READ


class LocalEngine:
    """The engine for this machine; :class:`headway.engine.base.Engine` documents each method.

    Args:
        scaling: The number of workers and the resources each of them needs.
        preload: Modules that the fork server imports before it forks.
        warm: Modules that the fork server imports when there is time.
    """

    in_process = False
    in_user_code = False

    def __init__(self, scaling: ScalingConfig, preload: Sequence[str] = (), warm: Sequence[str] = ()) -> None:
        self._preload = preload
        self._warm = warm
        self._inbox = Inbox()
        self.resources = RunResources(scaling, self._inbox.post)
        self._session: ForkSession | None = None
        self._num_oom_kills: int | None = None  # the count when the workers were launched
        self._processes = ProcessTable()
        self._unreported: set[int] = set()  # workers of the latest launch whose exits the fork server did not report

    def open(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._selector = selectors.DefaultSelector()
        self._channels = Channels(self._selector, self._on_messages, self._kill_worker, self._kill_without_fork_server)
        self._inbox.open()
        self._selector.register(self._inbox, _READ, self._on_wake_up)
        self._connect()

    def _connect(self) -> ForkSession:
        try:
            self._session = ForkSession(self._preload, self._warm)
        except OSError as error:
            raise EngineError(f"the process that forks workers cannot be reached: {error}") from error
        self._selector.register(self._session, _READ, partial(self._on_session, self._session))
        return self._session

    def launch(self, attempt: int, num_workers: int) -> None:
        if self._session is not None and (self._unreported or not self._channels.all_exited):
            self._end_workers()
        self._num_oom_kills = hardware.num_oom_kills()
        self._channels.drop_all()
        session = self._session or self._connect()
        try:
            store = os.memfd_create("headway-rendezvous", os.MFD_CLOEXEC)
            try:
                for index in range(num_workers):
                    gpus = self.resources.gpus_of_workers[index : index + 1]
                    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                    self._channels.add(attempt, ours)
                    with theirs:
                        fork = Fork(index=index, gpus=gpus[0] if gpus else ())
                        session.send(fork, [theirs.fileno(), self._inbox.fileno(), store])
            finally:
                os.close(store)
        except OSError as error:
            self._channels.drop_all()
            self._close_session()  # the fork server kills the workers that it already forked
            raise EngineError(f"workers could not be launched: {error}") from error

    def send(self, index: int, message: ToWorker) -> None:
        self._channels.send(index, message)

    def interrupt(self) -> None:
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._expect_exits(self._channels)

    def _kill_worker(self, channel: Channel) -> None:
        self._signal(signal.SIGKILL, channel.index)
        self._expect_exits([channel])

    def _expect_exits(self, killed: Iterable[Channel]) -> None:
        due = time.monotonic() + PATIENCE_S
        for channel in killed:
            channel.report_due = channel.report_due or due

    def _signal(self, number: int, index: int | None = None) -> None:
        """Have the fork server send a signal to one worker, or to all of them."""
        if self._session is not None:
            with contextlib.suppress(OSError):  # it has ended, with its workers, or does not respond
                self._session.send(Signal(index=index, number=int(number)))

    def process_stats(self, index: int) -> ProcessStats | None:
        channel = self._channels[index]
        if channel.tree is None and channel.pid is not None:
            channel.tree = ProcessTree(channel.pid)
        return channel.tree.look(self._processes) if channel.tree is not None else None

    def outside_stacks(self, index: int) -> OutsideStacks | None:
        channel = self._channels[index]
        return OutsideStacks(channel.pid, channel.stacks) if channel.pid is not None else None

    def one_shot_process(self, entry: str) -> ForkedOneShotProcess:
        return ForkedOneShotProcess(entry, self._preload, self._warm)

    def post(self, event: object) -> None:
        self._inbox.post(event)

    def discard_posted(self) -> None:
        """Forget the events that were posted so far and are not delivered yet."""
        self._inbox.discard()

    def pump(self, timeout_s: float | None) -> None:
        look_at = self.resources.look_at  # other threads change it
        due = [*self._channels.due(), *([] if look_at is None else [look_at])]
        if due:
            wait_s = max(0.0, min(due) - time.monotonic())
            timeout_s = wait_s if timeout_s is None else min(wait_s, timeout_s)
        for key, events in self._selector.select(timeout_s):
            handle: Callable[[int], None] = key.data
            handle(events)
        now = time.monotonic()
        self._channels.look(now)
        look_at = self.resources.look_at
        if look_at is not None and look_at <= now:
            self.resources.look(now)

    def _kill_without_fork_server(self, unreported: Sequence[Channel]) -> None:
        """Kill workers directly and report their exits: the fork server is busy with a long import, or is stopped."""
        codes = {each.index: exit_code_of_zombie(each.pid) for each in unreported if each.pid is not None}
        end_groups({each.pid for each in unreported if each.pid is not None})
        self._unreported.update(each.index for each in unreported)
        for channel in unreported:
            code = codes.get(channel.index)
            channel.is_cut_off = channel.is_cut_off and code is None  # otherwise it had ended before it was killed
            reason = "was killed while the process that forks workers did not respond" if code is None else ""
            self._on_exit(channel, Exited(index=channel.index, code=code, reason=reason))

    def _on_wake_up(self, events: int) -> None:
        posted = self._inbox.take()
        self._channels.read_resting()
        self._deliver(posted)

    def _on_messages(self, channel: Channel, messages: Sequence[ToController]) -> None:
        if channel.pid is None:
            for ready in [message for message in messages if isinstance(message, Ready)]:
                channel.pid, channel.stacks = ready.pid, ready.stacks
        self._deliver([FromWorker(channel.attempt, channel.index, message) for message in messages])

    def _on_session(self, session: ForkSession, events: int) -> None:
        if session is not self._session:
            return  # an event handled earlier closed it
        exited = session.receive()
        if exited is not None:
            self._unreported.discard(exited.index)
            if exited.code is None:
                self.resources.on_launch_failed(exited.index)
            return self._on_exit(self._channels[exited.index], exited)
        self._close_session()  # the fork server has ended; the kernel ends its workers
        end_groups(self._channels.pids)  # ends what the workers started, for example loader processes
        for channel in self._channels:
            self._on_exit(channel, Exited(index=channel.index, reason="was killed with the process that forks workers"))

    def _on_exit(self, channel: Channel, exited: Exited) -> None:
        """Deliver the exit after everything else the worker sent, which may still be in its socket."""
        self._channels.read_all(channel)
        if channel.exited:  # or its last messages caused a new launch
            return
        reason = channel.fault if channel.is_cut_off or exited.code == LOST_EXIT_CODE else exited.reason
        before, now = self._num_oom_kills, hardware.num_oom_kills()
        out_of_memory = None if now is None or before is None else now > before
        self._channels.drop(channel)
        channel.exited = True
        message = WorkerExited(code=exited.code, reason=reason, out_of_memory=out_of_memory)
        self._deliver([FromWorker(channel.attempt, channel.index, message)])

    def _close_session(self) -> None:
        if self._session is not None:
            self._selector.unregister(self._session)
            self._session.close(replace_server=bool(self._unreported))
            self._session = None
        self._unreported = set()

    def _end_workers(self) -> None:
        """Close the session, so that the fork server kills what is left of its workers, and wait for their end."""
        workers = self._channels.pids
        self._close_session()
        end_groups(workers, patience_s=PATIENCE_S, dying_s=DYING_S)

    def close(self) -> None:
        try:
            if self._inbox.is_open:
                self._end_workers()
                self._channels.drop_all()
                self._selector.close()
                self._inbox.close()
        finally:
            self.resources.release()  # last: workers that are still running use them
