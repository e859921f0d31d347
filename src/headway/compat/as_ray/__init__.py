"""Ray programs, unchanged: ``ray.train``, ``ray.air``, ``ray.tune``, ``ray.data`` and ``ray.util.sgd`` mean Headway.

    headway run --as-ray script.py

or, in a notebook, before anything else::

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
    """Make those names mean Headway from now on, in this process and in the workers that it starts. Idempotent."""
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    os.environ["HEADWAY_PREAMBLE"] = PREAMBLE
    os.environ.setdefault("HEADWAY_RESULTS", os.path.expanduser("~/ray_results"))
    taken = sys.modules.get("ray")
    for name in [name for name in sys.modules if name.startswith(REPLACED)]:
        del sys.modules[name]  # modules of Ray's own libraries that were imported earlier
    core = Core(taken)
    sys.modules["ray"] = core
    sys.meta_path.insert(0, Finder(core, FACES, REPLACED))
    if in_worker() and ray_session() is not None:
        core.become_real("a training worker")  # before unpickling anything that may hold handles of Ray
