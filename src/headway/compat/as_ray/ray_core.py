"""The module ``ray``: Ray Core, if it is installed, loaded only when a task, actor or object is first used.

A script that only calls ``ray.init()`` starts as fast as any other: the call is recorded, and made when Ray is needed.
Training workers join the driver's session, in its namespace, so that they find its named actors.
"""

from __future__ import annotations

import copyreg
import importlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from headway.compat.as_ray.futures import are_headway_futures, first_of, waited
from headway.core.environment import in_worker, ray_session
from headway.core.errors import SessionError

_logger = logging.getLogger(__name__)

SESSION = "HEADWAY_RAY_SESSION"
INSTALL = "pip install 'ray[default]'"
API_VERSION = "2.60.0"  # the version whose API is offered if Ray is not installed
NEED_SESSION = """available_resources cancel cluster_resources get get_actor get_runtime_context kill nodes put timeline
wait""".split()
HEADWAY_MODULES = ("train", "air", "tune", "data", "sgd")


class Core(ModuleType):
    """The module ``ray``. It becomes the real one, in place, for all code that imported it."""

    def __init__(self, real: ModuleType | None = None) -> None:
        super().__init__("ray", "Ray, with some of its libraries replaced by Headway.")
        spec = PathFinder.find_spec("ray") if real is None else real.__spec__
        self.__path__: list[str] = list(spec.submodule_search_locations or ()) if spec is not None else []
        self.__spec__: ModuleSpec = spec or ModuleSpec("ray", None, is_package=True)
        self.__package__ = "ray"
        self.__loader__ = self.__spec__.loader
        self.__file__ = self.__spec__.origin
        self._installed = spec is not None
        self._is_real = False
        self._lock = threading.RLock()
        self._init_arguments: dict[str, Any] | None = None  # the arguments of ray.init()
        self._context: Any = None  # the result of Ray's own init()
        if real is not None:
            vars(self).update({name: value for name, value in vars(real).items() if name not in HEADWAY_MODULES})
            self._is_real = True
            self._wrap_ray()
            if self.is_initialized():
                self._export_session()

    # --- without Ray ---

    @property
    def __version__(self) -> str:
        return metadata.version("ray") if self._installed else API_VERSION

    def _init(self, *args: Any, **kwargs: Any) -> Any:
        """Record the call until Ray is needed; if it joins a cluster, make it now, as that may fail."""
        kwargs = {**({"address": args[0]} if args else {}), **kwargs}
        if kwargs.get("address") not in (None, "local"):
            self._load_once("ray.init")
            return self.init(**kwargs)
        if self._init_arguments is not None and not kwargs.get("ignore_reinit_error"):
            raise RuntimeError("ray.init() was called twice: pass ignore_reinit_error=True to allow that")
        self._init_arguments = self._init_arguments or kwargs
        _export_env_vars(kwargs.get("runtime_env"))
        return _DeferredInit(self)

    def _shutdown(self, *args: Any, **kwargs: Any) -> None:
        self._init_arguments = None

    def _is_initialized(self) -> bool:
        return self._init_arguments is not None or ray_session() is not None

    def __getattr__(self, name: str) -> Any:
        plain: dict[str, Any] = {"init": self._init, "shutdown": self._shutdown, "is_initialized": self._is_initialized}
        if name in plain:
            return plain[name]
        if name in HEADWAY_MODULES:
            return importlib.import_module(f"ray.{name}")
        if name == "util" and not self._is_real:
            return importlib.import_module("ray.util")
        if name.startswith("__") or self._is_real:
            raise AttributeError(f"module 'ray' has no attribute {name!r}")
        if name in ("get", "wait"):
            return {"get": self._get, "wait": self._wait}[name]
        self.become_real(f"ray.{name}")
        return getattr(self, name)

    def _get(self, refs: Any, **options: Any) -> Any:
        """Get the results of Headway's futures without loading Ray, and all others with Ray."""
        if are_headway_futures(refs):
            return waited(refs, options.get("timeout"))
        self.become_real("ray.get")
        return self.get(refs, **options)

    def _wait(self, refs: Any, **options: Any) -> Any:
        if are_headway_futures(refs):
            return first_of(refs, **options)
        self.become_real("ray.wait")
        return self.wait(refs, **options)

    # --- with Ray ---

    def become_real(self, caller: str) -> None:
        """Load Ray Core into this module, and join or start a session if ``ray.init()`` was called."""
        with self._lock:
            if not self._load_once(caller):
                return
            session = ray_session()
            if session is not None:
                self._join(session)
            elif in_worker():
                self._refuse_session()
            elif self._init_arguments is not None:
                self._context = self.init(**self._init_arguments)

    def _load_once(self, caller: str) -> bool:
        """Load Ray Core unless it is loaded; return whether this call loaded it."""
        if self._is_real:
            return False
        if not self._installed:
            raise ModuleNotFoundError(f"{caller} needs the package ray, which is not installed: {INSTALL}", name="ray")
        self._load()
        return True

    def _join(self, session: dict[str, Any]) -> None:
        """Join the driver's session, so that tasks find modules in the script's directory, as the script's tasks do."""
        beside = os.path.dirname(os.path.realpath(sys.argv[0]))
        config = self.job_config.JobConfig(_py_driver_sys_path=[beside] if beside in sys.path else [])
        self._real_init(**session, job_config=config, log_to_driver=False, configure_logging=False)
        self._register_picklers()

    def _refuse_session(self) -> None:
        """Refuse functions that need a session, because each worker would start a separate one."""
        os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
        vars(self).update({name: _refusal(name) for name in NEED_SESSION})

    def _register_picklers(self) -> None:
        """Register Ray's reducers for references and handles, which functions and configs may contain."""
        self._private.worker.global_worker.get_serialization_context()  # registers reducers with Ray's pickler
        known = self.cloudpickle.CloudPickler.dispatch
        for kind in (self.ObjectRef, self.actor.ActorHandle):
            copyreg.pickle(kind, known[kind])

    def _load(self) -> None:
        loader = self.__spec__.loader
        assert loader is not None
        sys.modules.pop("ray.util", None)  # the placeholder
        vars(self).pop("util", None)
        self._is_real = True  # Ray's imports of itself find the real modules from now on
        try:
            loader.exec_module(self)
        except BaseException:
            self._is_real = False
            raise
        self._wrap_ray()

    def _wrap_ray(self) -> None:
        """Replace functions that Headway and Ray both define with functions that handle both."""
        mine = vars(self)
        for name in HEADWAY_MODULES:
            mine.pop(name, None)
        self._real_init, self._real_shutdown = mine["init"], mine["shutdown"]
        self._real_get, self._real_wait = mine["get"], mine["wait"]
        mine.update(init=self._init_and_export, shutdown=self._shutdown_and_unset)
        mine.update(get=self._get_either, wait=self._wait_either)

    def _init_and_export(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``ray.init()``, and describe the session in the environment, where workers find it."""
        done = self._real_init(*args, **kwargs)
        if self._init_arguments is None:  # otherwise this was done when the call was recorded
            _export_env_vars(kwargs.get("runtime_env"))
        self._export_session(kwargs.get("runtime_env"))
        return done

    def _export_session(self, runtime_env: Any = None) -> None:
        self._register_picklers()
        context = self.get_runtime_context()
        session = {"address": context.gcs_address, "namespace": context.namespace}
        if runtime_env is not None:
            session["runtime_env"] = dict(runtime_env)
        os.environ[SESSION] = json.dumps(session, default=str)

    def _shutdown_and_unset(self, *args: Any, **kwargs: Any) -> None:
        self._init_arguments = None
        os.environ.pop(SESSION, None)
        self._real_shutdown(*args, **kwargs)

    def _get_either(self, refs: Any, **options: Any) -> Any:
        return waited(refs, options.get("timeout")) if are_headway_futures(refs) else self._real_get(refs, **options)

    def _wait_either(self, refs: Any, **options: Any) -> Any:
        return first_of(refs, **options) if are_headway_futures(refs) else self._real_wait(refs, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, ("ray",)


class _DeferredInit:
    """The result of ``ray.init()`` before Ray is needed. Reading an attribute, such as the address, needs Ray."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def __enter__(self) -> _DeferredInit:
        return self

    def __exit__(self, *error: object) -> None:
        self._core.shutdown()

    def disconnect(self) -> None:
        self._core.shutdown()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._core.become_real(f"ray.init().{name}")
        return getattr(self._core._context, name)

    def __getitem__(self, name: str) -> Any:
        self._core.become_real(f"ray.init()[{name!r}]")
        return self._core._context[name]


def _export_env_vars(runtime_env: Any) -> None:
    """Set the tasks' ``env_vars`` in this process as well, from which training workers inherit them."""
    wanted = dict(runtime_env or {})
    os.environ.update({name: str(value) for name, value in (wanted.pop("env_vars", None) or {}).items()})
    if wanted:
        names = ", ".join(sorted(wanted))
        _logger.warning(f"{names} of the runtime_env apply to Ray's tasks and actors, not to training workers")


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise SessionError(
            f"ray.{name} in a training worker needs the driver's Ray session, but there is none, because ray.init() is "
            "deferred until the driver uses Ray: call for example ray.put(None) before fit()"
        )

    return refuse
