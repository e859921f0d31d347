"""The identity of a process: enough to tell, from another process and at another time, whether it still lives.

A process number alone does not tell: numbers are used again, start over after a reboot, and mean something else in
another container.
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
    """A process on this machine, and the user it belongs to."""

    pid: int
    started: str  # in ticks since the boot, as the kernel tells it; "" where it does not
    boot: str
    host: str  # the machine: another one has other boots, and its processes are not seen from here
    pid_namespace: str  # of the container, if there is one
    uid: int

    @classmethod
    def current(cls) -> Owner:
        """This process."""
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
        """Whether it lives, as far as we can tell: who is on another machine or in another container may."""
        if self.boot != boot_id():
            return self.host != _host()  # the same machine has been started again
        if self.pid_namespace != _pid_namespace():
            return True
        started = _started(self.pid)
        return started == self.started if started and self.started else _exists(self.pid)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, content: Any) -> Owner | None:
        """None for whatever :meth:`to_json` did not write."""
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            return None
        fields = {name: value for name, value in content.items() if name != "format"}
        expected = {name: type(value) for name, value in asdict(_EXAMPLE).items()}
        return cls(**fields) if {name: type(value) for name, value in fields.items()} == expected else None


_EXAMPLE = Owner(pid=0, started="", boot="", host="", pid_namespace="", uid=0)


def boot_id() -> str:
    """Tells one uptime of this machine from another: what was written in an earlier one may not have been flushed."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _host() -> str:
    """Name and number of this machine; containers of one image have the same number, and names of their own."""
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
