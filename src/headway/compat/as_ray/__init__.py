"""Support for unchanged Ray programs: ``ray.train``, ``.air``, ``.tune``, ``.data`` and ``.util.sgd`` become Headway.

    headway run --as-ray script.py

or, if there is no script (for example, in a notebook), before anything else::

    import headway.compat.as_ray
    headway.compat.as_ray.install()

Tasks, actors and objects (``ray.remote``, ``ray.get``, …) are Ray's own, if it is installed: see :mod:`.core`.
"""

from __future__ import annotations

import os
import sys

from headway.compat.as_ray.import_finder import Finder
from headway.compat.as_ray.name_map import FACES, REPLACED
from headway.compat.as_ray.ray_core import Core
from headway.core.environment import in_worker, ray_session

PREAMBLE = f"{__name__}:install"


def install() -> None:
    """Make those names resolve to Headway, in this process and its workers. Further calls have no effect."""
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    os.environ["HEADWAY_PREAMBLE"] = PREAMBLE
    os.environ.setdefault("HEADWAY_RESULTS", os.path.expanduser("~/ray_results"))
    taken = sys.modules.get("ray")
    for name in [name for name in sys.modules if name.startswith(REPLACED)]:
        del sys.modules[name]  # Ray's libraries imported before this call
    core = Core(taken)
    sys.modules["ray"] = core
    sys.meta_path.insert(0, Finder(core, FACES, REPLACED))
    if in_worker() and ray_session() is not None:
        core.become_real("a training worker")  # before unpickling anything that may contain Ray handles
