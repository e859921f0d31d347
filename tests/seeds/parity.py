"""Writes docs/parity.md, the map from what was promised to the test that shows it: ``python tests/seeds/parity.py``."""

from __future__ import annotations

from pathlib import Path

from rows import SETTLED, SHOWN, WAITING
from what import WHAT

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"

HEAD = """# What of Ray Train works here

Every row is something that a document of the Ray project has promised to people who train models, from RaySGD v2 over
Ray AIR to Ray Train V2. `headway run --as-ray script.py` runs a script in any of these vocabularies as it is.

*works*: the test named shows it. *waiting*: not there yet. *settled*: nothing that a test could show, and why.
This page is made by `python tests/seeds/parity.py`.

| row | what | state | shown by |
|---|---|---|---|
"""


def line(row: str) -> str:
    if row in SHOWN:
        return f"| {row} | {WHAT[row]} | works | `{SHOWN[row]}` |"
    if row in WAITING:
        return f"| {row} | {WHAT[row]} | waiting | for {WAITING[row]} |"
    return f"| {row} | {WHAT[row]} | settled | {SETTLED[row]} |"


def page() -> str:
    return HEAD + "\n".join(line(row) for row in WHAT) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
