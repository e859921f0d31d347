"""Training functions that run a script written for torchrun as ``__main__``."""

from __future__ import annotations

import os
import runpy
import sys
import types
from collections.abc import Sequence


def run_script(path: str, args: Sequence[str]) -> None:
    """Run a file as ``__main__``, the way ``python path args`` would."""
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    sys.argv = [path, *args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), vars(main))


def run_module(name: str, args: Sequence[str]) -> None:
    """Run a module as ``__main__``, the way ``python -m name args`` would."""
    sys.argv = [name, *args]
    sys.path.insert(0, os.getcwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)
