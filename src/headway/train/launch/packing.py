"""The user's function and its config: checks, binding, and packing for other processes."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headway.core.config_fields import fields_of
from headway.core.errors import ConfigError
from headway.core.task import Task


class CannotTravel(ConfigError, TypeError):
    """The function, or an object that it uses, cannot be sent to another process."""


def pack(task: Task, to: str = "the workers") -> bytes:
    """Convert the task to bytes; CannotTravel names the part that cannot be sent."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(task)
    except Exception as error:  # third-party __reduce__ methods may raise anything
        raise CannotTravel(_explanation(task, error, to)) from error
    return data


def bind(function: object, config: object) -> Callable[[], Any]:
    """Return the call to make: the function, with its config if its parameters require one."""
    if isinstance(function, functools._lru_cache_wrapper):
        function = function.__wrapped__  # a cache cannot be sent, and would be useless there
    if not callable(function):
        hint = ": did you call it?" if function is None else ""
        raise ConfigError(f"train_loop_per_worker must be a function, got {function!r}{hint}")
    name = _name(function)
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise ConfigError(f"{name} must be a plain function: calling it would only return a generator or coroutine")
    _check_config(config)
    required, _, demanded = _parameters(function)
    if demanded is not None:
        raise ConfigError(
            f"{name} requires the keyword argument {demanded!r}, but is called with one positional argument, the config"
        )
    if required > 1:
        raise ConfigError(f"{name} must take no parameter or one (the config), but requires {required}")
    if required == 1 or (config is not None and takes_config(function)):
        return functools.partial(function, {} if config is None else config)
    return function


def takes_config(function: Callable[..., Any]) -> bool:
    """Whether the function can be called with a config."""
    required, optional, _ = _parameters(function)
    return required + optional > 0


def _check_config(config: object) -> None:
    if isinstance(config, type):
        raise ConfigError(f"train_loop_config must be an instance, got the class {config.__qualname__}: call it")
    if config is not None and fields_of(config) is None:
        raise ConfigError(
            f"train_loop_config must be a dict, a dataclass instance or another object with fields, got {config!r}"
        )


def _parameters(function: Callable[..., Any]) -> tuple[int, int, str | None]:
    """Return how many positional arguments are required, how many more are optional, and a required keyword argument.

    ``*args`` count as one more.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return 0, 0, None
    empty = inspect.Parameter.empty
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(p.default is empty and p.kind in positional for p in parameters)
    optional = sum(p.default is not empty and p.kind in positional for p in parameters)
    optional += any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    demanded = (p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY and p.default is empty)
    return required, optional, next(demanded, None)


def _name(function: Any) -> str:
    return repr(getattr(function, "__name__", type(function).__name__))


def _explanation(task: Task, error: Exception, to: str) -> str:
    function = task.call.func if isinstance(task.call, functools.partial) else task.call
    culprit = next(
        itertools.chain(
            _culprits(task.call, ""), _culprits(task.metadata, "metadata"), _culprits(task.backend, "backend_config")
        ),
        None,
    )
    if culprit is None:
        return f"{_name(function)} cannot be sent to {to}: {error}"
    path, value = culprit
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return (
        f"{_name(function)} cannot be sent to {to}: {path} is a {kind}, which cannot be pickled "
        f"({error}); create it inside the function"
    )


def _culprits(value: object, path: str, depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield the innermost objects that cannot be pickled, with the path to each."""
    if depth > 6 or _pickles(value):
        return
    found = False
    for step, part in _parts(value):
        for culprit in _culprits(part, f"{path} → {step}" if path else step, depth + 1):
            found = True
            yield culprit
    if not found and path:
        yield path, value


def _pickles(value: object) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(value)
    except Exception:  # see packed()
        return False
    return True


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """Yield the parts of an object, with the names that the user knows."""
    if isinstance(value, functools.partial):
        if value.args:
            yield "train_loop_config", value.args[0]
        for name, item in value.keywords.items():
            yield f"its keyword argument {name!r}", item
        yield from _parts(value.func)
    elif inspect.ismethod(value):
        yield "self", value.__self__
        yield from _parts(value.__func__)
    elif inspect.isfunction(value):
        known = inspect.getclosurevars(value)
        for name, item in {**known.nonlocals, **known.globals}.items():
            yield f"its variable {name!r}", item
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"key {key!r}", item
    elif isinstance(value, list | tuple | set):
        for index, item in enumerate(value):
            yield f"item {index}", item
    elif hasattr(value, "__dict__") and not inspect.ismodule(value):
        for name, item in vars(value).items():
            yield f"attribute {name!r}", item
