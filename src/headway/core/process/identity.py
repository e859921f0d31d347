"""The identity of a process, with which another process can later determine whether it is still alive.

A process id alone is not enough: ids are reused, restart after a reboot, and differ between containers.
"""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process on this machine, and its user."""

    pid: int
    started: str  # start time in ticks since boot, from the kernel; "" if unknown
    boot: str
    host: str  # the machine; processes on other machines are not visible
    pid_namespace: str  # the container's PID namespace, if it runs in a container
    uid: int

    @classmethod
    def current(cls) -> Owner:
        """The identity of this process."""
        pid = os.getpid()
        return cls(
            pid=pid,
            started=_started(pid),
            boot=boot_id(),
            host=_host(),
            pid_namespace=_pid_namespace(),
            uid=os.geteuid(),
        )

    @property
    def is_alive(self) -> bool:
        """Whether the process may be alive; always true if it is on a different machine or in another container."""
        if self.boot != boot_id():
            return self.host != _host()  # the same machine, rebooted
        if self.pid_namespace != _pid_namespace():
            return True
        started = _started(self.pid)
        return started == self.started if started and self.started else _exists(self.pid)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, content: Any) -> Owner | None:
        """The identity, or None if the content was not written by :meth:`to_json`."""
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            return None
        fields = {name: value for name, value in content.items() if name != "format"}
        expected = {name: type(value) for name, value in asdict(_EXAMPLE).items()}
        return cls(**fields) if {name: type(value) for name, value in fields.items()} == expected else None


_EXAMPLE = Owner(pid=0, started="", boot="", host="", pid_namespace="", uid=0)


def boot_id() -> str:
    """The id of the current boot. Files from before the last reboot may not have been flushed to disk."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _host() -> str:
    """Name and id of this machine. Containers of one image have the same id but different names."""
    try:
        number = Path("/etc/machine-id").read_text().strip()
    except OSError:
        number = ""
    return f"{socket.gethostname()} {number}"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _started(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
