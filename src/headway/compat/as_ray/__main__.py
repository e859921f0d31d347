"""``python -m headway.compat.as_ray script.py args``"""

from __future__ import annotations

import sys

from headway.compat.as_ray import install
from headway.worker.torchrun_script import run_script


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python -m headway.compat.as_ray SCRIPT [ARGS]")
    install()
    run_script(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    main()
