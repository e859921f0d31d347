#!/usr/bin/env python3
"""Write the tree of modules into docs/architecture.md: each with the first sentence of its docstring.

usage: python docs/module_tree.py [--check]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/architecture.md"
BEGIN, END = "<!-- modules: begin -->\n```\n", "```\n<!-- modules: end -->"
TOP_DOWN = "cli compat train control worker data frameworks diagnosis observe testing engine storage core"
COLUMN = 30


def first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".:")


def lines_of(package: Path, depth: int = 0) -> Iterator[str]:
    yield _line(f"{package.name}/", depth, package / "__init__.py")
    for path in sorted(package.glob("*.py")):
        if path.stem != "__init__":
            yield _line(path.stem, depth + 1, path)
    for below in sorted(path.parent for path in package.glob("*/__init__.py")):
        yield from lines_of(below, depth + 1)


def _line(name: str, depth: int, path: Path) -> str:
    return f"{'  ' * depth + name:{COLUMN}}{first_sentence(path)}".rstrip()


def with_tree(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    tree = [line for name in TOP_DOWN.split() for line in lines_of(ROOT / "src/headway" / name)]
    return before + BEGIN + "".join(f"{line}\n" for line in tree) + END + after


def main() -> int:
    page = PAGE.read_text()
    if "--check" in sys.argv:
        return int(page != with_tree(page))
    PAGE.write_text(with_tree(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
