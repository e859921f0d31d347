"""``ray`` itself: Ray Core, if it is installed, loaded when the first task, actor or object is asked for, not before.

A script that merely calls ``ray.init()`` starts as fast as any other: what it said there is noted, and done when Ray is
needed. Training workers join the session that the driver has, in its namespace, so that they find its named actors.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import json
import os
import sys
import threading
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from headway.core.environment import in_worker, ray_session
from headway.core.errors import SessionError

SESSION = "HEADWAY_RAY_SESSION"
INSTALL = "pip install 'ray[default]'"
SPOKEN = "2.60.0"  # the version whose words we speak, where none is installed
OURS = ("train", "air", "tune", "data", "sgd")


class Core(ModuleType):
    """The module ``ray``. It becomes the real one, in place: whoever has imported it has the real one then."""

    def __init__(self, real: ModuleType | None = None) -> None:
        super().__init__("ray", "Ray, as Headway has it.")
        spec = PathFinder.find_spec("ray") if real is None else real.__spec__
        self.__path__: list[str] = list(spec.submodule_search_locations or ()) if spec is not None else []
        self.__spec__: ModuleSpec = spec or ModuleSpec("ray", None, is_package=True)
        self.__package__ = "ray"
        self.__loader__ = self.__spec__.loader
        self.__file__ = self.__spec__.origin
        self._installed = spec is not None
        self._is_real = False
        self._lock = threading.RLock()
        self._noted: dict[str, Any] | None = None  # what ray.init() was told
        self._context: Any = None  # and what it gave, when it was done
        if real is not None:
            vars(self).update({name: value for name, value in vars(real).items() if name not in OURS})
            self._is_real = True
            self._put_before()

    # --- what costs nothing ---

    @property
    def __version__(self) -> str:
        return metadata.version("ray") if self._installed else SPOKEN

    def _init(self, *args: Any, **kwargs: Any) -> Any:
        """Noted, and done when Ray is needed."""
        if args:
            kwargs = {"address": args[0], **kwargs}
        if self._noted is not None and not kwargs.get("ignore_reinit_error"):
            raise RuntimeError("ray.init() was called twice: say ignore_reinit_error=True to allow that")
        self._noted = self._noted or kwargs
        return _Noted(self)

    def _shutdown(self, *args: Any, **kwargs: Any) -> None:
        self._noted = None

    def _is_initialized(self) -> bool:
        return self._noted is not None or ray_session() is not None

    def __getattr__(self, name: str) -> Any:
        plain: dict[str, Any] = {"init": self._init, "shutdown": self._shutdown, "is_initialized": self._is_initialized}
        if name in plain:
            return plain[name]
        if name in OURS:
            return importlib.import_module(f"ray.{name}")
        if name == "util" and not self._is_real:
            return importlib.import_module("ray.util")
        if name.startswith("__") or self._is_real:
            raise AttributeError(f"module 'ray' has no attribute {name!r}")
        if name == "get":
            return self._get
        self.become_real(f"ray.{name}")
        return getattr(self, name)

    def _get(self, refs: Any, **options: Any) -> Any:
        """Ours are had without Ray."""
        if _all_ours(refs):
            return _waited(refs, options.get("timeout"))
        self.become_real("ray.get")
        return self.get(refs, **options)

    # --- what is Ray's own ---

    def become_real(self, caller: str) -> None:
        """Load Ray Core into this module, and join or start a session where one was asked for."""
        with self._lock:
            if self._is_real:
                return
            if not self._installed:
                raise ModuleNotFoundError(
                    f"{caller} needs the package ray, which is not installed: {INSTALL}", name="ray"
                )
            session = ray_session()
            if in_worker() and session is None:
                raise SessionError(
                    f"{caller} in a training worker needs the driver's Ray session, and there is none: let the driver "
                    "use Ray before fit(), a ray.put(None) will do"
                )
            self._load()
            if session is not None:
                self._real_init(**session, log_to_driver=False, configure_logging=False)
            elif self._noted is not None:
                self._context = self.init(**self._noted)

    def _load(self) -> None:
        loader = self.__spec__.loader
        assert loader is not None
        sys.modules.pop("ray.util", None)  # our stand-in for it
        vars(self).pop("util", None)
        self._is_real = True  # what it imports of itself is real from now on
        try:
            loader.exec_module(self)
        except BaseException:
            self._is_real = False
            raise
        self._put_before()

    def _put_before(self) -> None:
        """Our words before Ray's where both have one."""
        mine = vars(self)
        for name in OURS:
            mine.pop(name, None)
        self._real_init, self._real_shutdown, self._real_get = mine["init"], mine["shutdown"], mine["get"]
        mine.update(init=self._init_and_tell, shutdown=self._shutdown_and_tell, get=self._get_either)

    def _init_and_tell(self, *args: Any, **kwargs: Any) -> Any:
        """Workers find the session by what we tell them in the environment."""
        done = self._real_init(*args, **kwargs)
        context = self.get_runtime_context()
        os.environ[SESSION] = json.dumps({"address": context.gcs_address, "namespace": context.namespace})
        return done

    def _shutdown_and_tell(self, *args: Any, **kwargs: Any) -> None:
        self._noted = None
        os.environ.pop(SESSION, None)
        self._real_shutdown(*args, **kwargs)

    def _get_either(self, refs: Any, **options: Any) -> Any:
        return _waited(refs, options.get("timeout")) if _all_ours(refs) else self._real_get(refs, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, ("ray",)


class _Noted:
    """What ``ray.init()`` gives before Ray is needed. Whoever asks it for anything, an address say, needs Ray."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def __enter__(self) -> _Noted:
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


def _all_ours(refs: Any) -> bool:
    """Futures of a worker group of ours, one or a list of them."""
    found = refs if isinstance(refs, list | tuple) else [refs]
    return bool(found) and all(isinstance(ref, concurrent.futures.Future) for ref in found)


def _waited(refs: Any, timeout: float | None) -> Any:
    return [ref.result(timeout) for ref in refs] if isinstance(refs, list | tuple) else refs.result(timeout)
