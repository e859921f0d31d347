"""All environment variables that the library reads; other modules do not read any."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from headway.core.errors import ConfigError


def results_folder() -> Path:
    """The directory for runs without a storage_path: ``HEADWAY_RESULTS``, or ``~/headway_results`` by default."""
    chosen = os.environ.get("HEADWAY_RESULTS") or "~/headway_results"
    if re.match(r"[A-Za-z][\w+.-]*:/", chosen):
        raise ConfigError(
            f"HEADWAY_RESULTS must be a directory on this machine, got {chosen!r}: pass a URI as "
            "RunConfig(storage_path=...) or headway run --storage-path"
        )
    return expanded(chosen, "HEADWAY_RESULTS")


def key_file() -> Path:
    """The user's key file for signatures: ``HEADWAY_KEY_FILE``, or a file in the user's config directory by default."""
    if chosen := os.environ.get("HEADWAY_KEY_FILE"):
        return expanded(chosen, "HEADWAY_KEY_FILE")
    settings = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return expanded(settings, "HEADWAY_KEY_FILE") / "headway" / "key"


def expanded(path: str, variable: str = "") -> Path:
    """The absolute path, with ``~`` expanded. The error for users without a home directory mentions ``variable``."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:
        hint = f": set {variable} or HOME" if variable else ""
        raise ConfigError(f"{path} cannot be resolved: there is no such home directory{hint}") from None


def working_directory() -> str:
    """The current directory, or ``/`` if it was removed, because libraries such as torch need an existing one."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def memory_folder() -> str | None:
    """The directory for in-memory checkpoints: ``HEADWAY_MEMORY_DIR``, or ``/dev/shm``; None if it is not writable."""
    chosen = os.environ.get("HEADWAY_MEMORY_DIR") or "/dev/shm"
    return chosen if os.access(chosen, os.W_OK) else None


def wanted_log_level() -> str:
    """The log level for runs whose RunConfig has no logging_config: ``HEADWAY_LOG_LEVEL``, or INFO by default."""
    return os.environ.get("HEADWAY_LOG_LEVEL") or "INFO"


def wanted_engine() -> str:
    """The engine to use if the config says ``"auto"``: ``HEADWAY_ENGINE``."""
    return os.environ.get("HEADWAY_ENGINE", "auto")


def object_store_endpoint() -> str | None:
    """The endpoint of an S3 server other than Amazon's: ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL``."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def has_aws_keys() -> bool:
    """Whether the environment contains keys for S3, so that other sources of keys can be skipped."""
    return bool(os.environ.get("AWS_ACCESS_KEY_ID"))


def in_worker() -> bool:
    """Whether this process is a worker, or was started by one."""
    return bool(os.environ.get("HEADWAY_WORKER"))


def preamble() -> str | None:
    """``HEADWAY_PREAMBLE``: a ``module:function`` that every worker calls before it unpickles user objects.

    It is set in the driver, and workers inherit it with the rest of the environment.
    """
    return os.environ.get("HEADWAY_PREAMBLE") or None


def ray_session() -> dict[str, str] | None:
    """``HEADWAY_RAY_SESSION``: the ``address`` and ``namespace`` of the driver's Ray session, which workers join."""
    text = os.environ.get("HEADWAY_RAY_SESSION")
    found: dict[str, str] | None = json.loads(text) if text else None
    return found


def wants_detailed_metrics() -> bool:
    """Whether RaySGD reports include host, process and date, according to RaySGD's environment variables."""
    names = ("SGD_RESULT_ENABLE_DETAILED_AUTOFILLED_METRICS", "TRAIN_RESULT_ENABLE_DETAILED_AUTOFILLED_METRICS")
    return any(os.environ.get(name, "0") not in ("", "0") for name in names)


def threads_set_by_user() -> bool:
    """Whether the user set the number of CPU threads (``OMP_NUM_THREADS``); if so, Headway does not change it."""
    return bool(os.environ.get("OMP_NUM_THREADS"))


def visible_gpus() -> list[str] | None:
    """The GPUs in ``CUDA_VISIBLE_DEVICES``, or None if the variable is not set."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if text is None else [gpu.strip() for gpu in text.split(",") if gpu.strip()]


def shares_gpus() -> bool:
    """Whether a run may use GPUs that other runs are using: ``HEADWAY_SHARE_GPUS``."""
    return os.environ.get("HEADWAY_SHARE_GPUS", "0") not in ("", "0")


def logical_resources() -> dict[str, float]:
    """Resources of this machine other than CPUs, GPUs and memory: ``HEADWAY_RESOURCES``, such as ``{"licence": 2}``."""
    text = os.environ.get("HEADWAY_RESOURCES") or "{}"
    try:
        found = {str(name): float(amount) for name, amount in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f'HEADWAY_RESOURCES must be JSON like {{"licence": 2}}, got {text!r}') from None
    if bad := sorted(found.keys() & {"CPU", "GPU", "memory"}):
        raise ConfigError(f"HEADWAY_RESOURCES must not name {bad[0]!r}: Headway detects it")
    return found


@dataclass(frozen=True)
class OuterRanks:
    """The ranks and addresses that an outer ``torchrun`` assigned to this process."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    master_addr: str
    master_port: int


def outer_ranks() -> OuterRanks | None:
    """The ranks assigned by an outer ``torchrun``, or None if there is none."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(os.environ.get(name) for name in names):
        return None
    rank, world_size, local_rank, local_world_size = (_number(name) for name in names[:4])
    address, port = os.environ["MASTER_ADDR"], _number("MASTER_PORT")
    node_rank = _number("GROUP_RANK") if os.environ.get("GROUP_RANK") else 0
    return OuterRanks(rank, world_size, local_rank, local_world_size, node_rank, address, port)


def _number(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise ConfigError(f"the environment variable {name} must be a number, got {os.environ[name]!r}") from None
