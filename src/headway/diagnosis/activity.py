"""The activity of a rank, determined from its main thread's stack and its heartbeat. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from headway.core.messages import Frame, Wait, WaitOperation

Kind = Literal["collective", "wait", "loader", "storage", "lock", "sleep", "io", "child", "code"]

# Files of torch.distributed, as suffixes of paths. A main thread in one of them is in a collective.
_COLLECTIVES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/utils.py",
    "torch/distributed/rendezvous.py",
    "torch/nn/parallel/distributed.py",
)
_WRAPPERS = {"wrapper", "inner", "_fn", "_time_logger", "__call__"}
_BACKWARD = ("torch/autograd/graph.py", "_engine_run_backward")
_LOADERS = ("torch/utils/data/", "headway/data/")
_STORAGE = "headway/storage/"
_NETWORK = (
    "/socket.py",
    "/ssl.py",
    "/http/client.py",
    "/selectors.py",
    "/urllib/request.py",
    "/asyncio/base_events.py",
)
_POOLS = ("/multiprocessing/pool.py", "/multiprocessing/popen_fork.py")  # they wait for processes with a lock
_WAITING_FILES: dict[Kind, tuple[str, ...]] = {
    "child": ("/subprocess.py", *_POOLS),
    "io": _NETWORK,
    "lock": ("/threading.py", "/queue.py", "/concurrent/futures/_base.py"),
}
# A compiler may take any amount of time. Compiled code also runs through some of these files.
_COMPILERS = (
    "torch/_dynamo/convert_frame.py",
    "torch/_dynamo/backends/",
    "torch/_inductor/compile_fx",
    "torch/_inductor/codecache.py",
    "torch/_inductor/async_compile.py",
    "torch/_inductor/cpp_builder.py",
    "torch/_inductor/graph.py",
    "torch/_inductor/scheduler.py",
    "torch/_functorch/_aot_autograd/graph_compile.py",
    "torch/_export/",
    "torch/utils/cpp_extension.py",
    "triton/compiler/",
    "jax/_src/compiler.py",
    "numba/core/compiler.py",
)
_RUNS = {"run", "__call__"}
_CALLED = ("torch/_dynamo/convert_frame.py",)  # its ``__call__`` compiles
_IMPORT = "<frozen importlib."
_WORKER = "headway/worker/"
WAITS: dict[WaitOperation, str] = {
    "barrier": "a barrier or broadcast",
    "report": "report",
    "batch": "the next batch, which all must have",
    "checkpoints": "get_all_reported_checkpoints",
}


@dataclass(frozen=True)
class Doing:
    """The activity of a rank. ``what``: the operation's name; ``where``: the line of user code that led to it."""

    kind: Kind
    what: str = ""
    where: str = ""

    @property
    def text(self) -> str:
        return f"{self.what or self.kind}{f' (called in {self.where})' if self.where else ''}"


def doing(frames: Sequence[Frame], *, idle: bool, in_loader: bool = False, wait: Wait | None = None) -> Doing:
    """Determine what a rank does from its innermost calls, and where from the innermost line of user code.

    Args:
        frames: The calls of its main thread, outermost first.
        idle: Whether none of its threads computes.
        in_loader: Whether it waits for a batch, according to its heartbeat.
        wait: What it waits for, according to its heartbeat.
    """
    kind, what = _kind(frames, idle=idle, in_loader=in_loader, wait=wait)
    return Doing(kind, what, _where(frames))


def is_compiling(frames: Sequence[Frame]) -> bool:
    """Whether a model, a kernel or an extension is being compiled."""
    return any(
        part in frame.file and (frame.function not in _RUNS or part in _CALLED)
        for frame in frames
        for part in _COMPILERS
    )


def is_importing(frames: Sequence[Frame]) -> bool:
    """Whether a module is being imported."""
    return any(frame.file.startswith(_IMPORT) for frame in frames)


def _kind(frames: Sequence[Frame], *, idle: bool, in_loader: bool, wait: Wait | None) -> tuple[Kind, str]:
    inner = _after_users(frames)
    # The heartbeat may be older than the stack, so its wait counts only if the main thread is in a Headway call.
    if wait is not None and wait.is_for_ranks and any(_WORKER in frame.file for frame in inner):
        return "wait", WAITS[wait.operation]
    if in_loader or any(part in frame.file for frame in frames for part in _LOADERS):
        return "loader", ""
    if any(_STORAGE in frame.file for frame in frames):
        return "storage", ""
    if collective := [frame for frame in inner if _is_in(frame, _COLLECTIVES) and frame.function not in _WRAPPERS]:
        return "collective", _name(collective)
    leaf = frames[-1] if frames else Frame("", 0, "")
    if idle and leaf.file.endswith(_BACKWARD[0]) and leaf.function == _BACKWARD[1]:
        return "collective", "backward (all-reduce of gradients)"
    if any(_is_in(frame, _POOLS) for frame in inner):
        return "child", ""
    if leaf.hint:
        return leaf.hint, ""
    return next(
        (kind for kind, files in _WAITING_FILES.items() if any(_is_in(frame, files) for frame in inner)), "code"
    ), ""


def _name(collective: Sequence[Frame]) -> str:
    """Return the outermost public function of torch.distributed, or the method of DDP."""
    first = collective[0]
    if first.file.endswith("nn/parallel/distributed.py"):
        return f"DistributedDataParallel.{first.function}"
    return first.function


def _after_users(frames: Sequence[Frame]) -> list[Frame]:
    """Return the calls made from the innermost frame of user code, without that frame."""
    last = max((i for i, frame in enumerate(frames) if frame.users), default=-1)
    return list(frames[last + 1 :])


def _where(frames: Sequence[Frame]) -> str:
    users = [frame for frame in frames if frame.users]
    if not users:
        return f"{frames[-1].function} ({PurePath(frames[-1].file).name}:{frames[-1].line})" if frames else ""
    return f"{users[-1].function} ({PurePath(users[-1].file).name}:{users[-1].line})"


def _is_in(frame: Frame, files: Sequence[str]) -> bool:
    return any(frame.file.endswith(file) for file in files)
