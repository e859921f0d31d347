"""A simulated disk that loses unflushed data: records every step of a save and rebuilds the state after each crash.

The model is a journaling filesystem: names (folders, renames, links, removals) reach the disk in order, all of them up
to the last flush of a folder or file and any number more; the content of a file is there if the file was flushed after
it was written, and is empty otherwise.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headway.storage import durable_fs


@dataclass
class Tape:
    """The steps of a save below ``root``: (what, paths, content)."""

    root: Path
    steps: list[tuple[str, tuple[str, ...], bytes]] = field(default_factory=list)
    _inner: threading.local = field(default_factory=threading.local)  # a step may consist of steps

    def record(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("make_directory", "write", "copy", "move", "link", "exchange", "flush", "remove"):
            patch.setattr(durable_fs, name, self._recorded(name, getattr(durable_fs, name)))

    def _recorded(self, name: str, step: Callable[..., None]) -> Callable[..., None]:
        def recorded(*args: Any) -> None:
            depth = getattr(self._inner, "depth", 0)
            below = _below(args[0]) if name == "remove" and depth == 0 else []
            self._inner.depth = depth + 1
            try:
                step(*args)
            finally:
                self._inner.depth = depth
            if depth == 0:
                for path in below:  # a tree is not removed in one step
                    self.steps.append(("remove", (str(path.relative_to(self.root)),), b""))
                paths = tuple(str(path.relative_to(self.root)) for path in args if self._inside(path))
                content = Path(args[-1]).read_bytes() if name == "copy" else args[1] if name == "write" else b""
                self.steps.append((name, paths, content))

        return recorded

    def _inside(self, path: Any) -> bool:
        return isinstance(path, Path) and path.is_relative_to(self.root)


def _below(folder: Path) -> list[Path]:
    """Everything below a directory, deepest entries first."""
    return sorted(folder.rglob("*"), reverse=True) if folder.is_dir() else []


@dataclass
class _File:
    content: bytes


Contents = Callable[[_File], bytes]


class _Model:
    """Names as a tree of dicts; files are shared between names that are linked."""

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {}

    def folder(self, path: str, *, make: bool = False) -> dict[str, Any]:
        here = self.tree
        for part in Path(path).parts:
            here = here.setdefault(part, {}) if make else here[part]
        return here

    def get(self, path: str) -> Any:
        return self.folder(os.path.dirname(path))[os.path.basename(path)]

    def put(self, path: str, node: Any) -> None:
        self.folder(os.path.dirname(path))[os.path.basename(path)] = node

    def take(self, path: str) -> Any:
        try:
            return self.folder(os.path.dirname(path)).pop(os.path.basename(path), None)
        except KeyError:
            return None

    def apply(self, step: tuple[str, tuple[str, ...], bytes]) -> None:
        name, paths, content = step
        match name:
            case "make_directory":
                self.folder(paths[0], make=True)
            case "write" | "copy":
                self.put(paths[-1], _File(content))
            case "move":
                self.put(paths[1], self.take(paths[0]))
            case "link":
                self.put(paths[1], self.get(paths[0]))
            case "exchange":
                a, b = self.get(paths[0]), self.get(paths[1])
                self.put(paths[0], b)
                self.put(paths[1], a)
            case "remove":
                self.take(paths[0])

    def build(self, root: Path, contents: Contents, node: dict[str, Any] | None = None) -> None:
        for name, child in (self.tree if node is None else node).items():
            if isinstance(child, dict):
                (root / name).mkdir(parents=True)
                self.build(root / name, contents, child)
            else:
                (root / name).write_bytes(contents(child))


def after_every_crash(tape: Tape, root: Path, *, reboots: bool = True) -> Iterator[tuple[int, int]]:
    """Rebuild below ``root`` what a crash after each step may leave; gives (steps done, steps whose names stay).

    Where only a process is killed and the machine keeps running (not ``reboots``), no completed step is lost.
    """
    for done in range(len(tape.steps) + 1):
        durable = max((i + 1 for i, (name, _, _) in enumerate(tape.steps[:done]) if name == "flush"), default=0)
        for names in range(durable if reboots else done, done + 1):
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir()
            model, flushed = _rebuilt(tape, done, names)
            model.build(root, flushed if reboots else lambda file: file.content)
            yield done, names


def _rebuilt(tape: Tape, done: int, names: int) -> tuple[_Model, Contents]:
    """The names of the first ``names`` steps, the contents that were flushed in the first ``done``."""
    model, kept = _Model(), _Model()
    flushed: dict[int, bytes] = {}
    for number, step in enumerate(tape.steps[:done]):
        if number == names:
            kept.tree = _copied(model.tree)
        if step[0] == "flush":
            node = _find(model, step[1][0])
            if isinstance(node, _File):
                flushed[id(node)] = node.content
        else:
            model.apply(step)
    return kept if names < done else model, lambda file: flushed.get(id(file), b"")


def _copied(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: _copied(node) if isinstance(node, dict) else node for name, node in tree.items()}


def _find(model: _Model, path: str) -> Any:
    try:
        return model.get(path) if path not in (".", "") else model.tree
    except KeyError:
        return None
