"""Values for setting up a worker: its rank, its run, its environment and its logging."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headway.core.task import WorkerOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class RankAssignment:
    """The ranks of one worker. ``gpus`` are indices into ``visible_gpus``, which all workers of a node share."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int = 0
    num_nodes: int = 1
    gpus: tuple[int, ...] = ()
    visible_gpus: tuple[str, ...] = ()
    num_threads: int | None = None
    master_addr: str = "127.0.0.1"
    master_port: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """The properties of a run that its workers need."""

    id: str
    name: str
    path: str
    seed: int
    root: str = ""  # where checkpoints are staged, if not in ``path``
    store: bytes = b""  # the object store of the run, pickled
    attempt: int
    num_workers: int
    options: WorkerOptions = field(default_factory=WorkerOptions)
    key: bytes = b""  # the run's secret key, with which its workers sign their files
    trust: bool = False  # whether pickles in the run's directory may be opened regardless of their author


Stream = Literal["out", "err"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerSettings:
    """A handler of ``logging`` for a rank's log.

    Attributes:
        stream: The log it writes to.
        level: Its level.
        style: Its formatter and its filters, pickled.
        replaces_file: Whether the driver's handler writes to a file, a socket or a service instead of the console.
    """

    stream: Stream
    level: int = 0
    style: bytes = b""
    replaces_file: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggerSettings:
    """The settings of one logger; the root logger has an empty name."""

    name: str
    level: int
    propagate: bool = True
    disabled: bool = False
    handlers: tuple[HandlerSettings, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggingSettings:
    """The configuration of ``logging``; ``disabled_level`` is the level passed to ``logging.disable()``."""

    loggers: tuple[LoggerSettings, ...]
    disabled_level: int = 0
    level_names: dict[int, str] = field(default_factory=dict)
    captures_warnings: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessSetup:
    """The part of the driver's state that another process copies before it unpickles user code.

    ``main_file`` and ``main_name`` are the path and the module name of the driver's script. Processes that a worker
    starts with multiprocessing's "spawn" import it to find the script's classes. Both are empty if they must not.
    """

    env: dict[str, str]
    cwd: str
    sys_path: tuple[str, ...]
    argv: tuple[str, ...] = ()
    main_file: str = ""
    main_name: str = ""
    logging: LoggingSettings | None = None
