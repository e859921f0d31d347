"""Documents are correct: examples run, links lead to files, the module tree is up to date."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headway
from support import python, write_script

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


@pytest.mark.parametrize("index", range(len(blocks(README, "python"))))
def test_every_program_in_the_readme_runs(index: int, tmp_path: Path) -> None:
    done = python(write_script(tmp_path, blocks(README, "python")[index]), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def programs() -> list[tuple[str, int]]:
    pages = [path.name for path in sorted((ROOT / "docs").glob("*.md"))]
    return [
        (page, index) for page in pages for index, _ in enumerate(blocks((ROOT / "docs" / page).read_text(), "python"))
    ]


@pytest.mark.parametrize(("page", "index"), programs())
def test_every_program_on_a_page_runs(page: str, index: int, tmp_path: Path) -> None:
    program = blocks((ROOT / "docs" / page).read_text(), "python")[index]
    done = python(write_script(tmp_path, program), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_readmes_two_commands_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in ("quickstart", "test"):
        assert f"make {command}" in README
        assert re.search(rf"^{command}:", makefile, re.M)
    assert "exec make test" in (ROOT / ".ci/run").read_text()


def test_ci_can_run_the_script() -> None:
    assert os.access(ROOT / ".ci/run", os.X_OK)


def modules_with_examples() -> list[str]:
    found = []
    for module in pkgutil.walk_packages(headway.__path__, "headway."):
        path = ROOT / "src" / Path(*module.name.split("."))
        source = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        if ">>> " in source.read_text():
            found.append(module.name)
    return found


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_in_docstrings_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("path", sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/**/*.md")))
def test_links_between_documents_lead_somewhere(path: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / path).read_text()):
        assert (ROOT / path).parent.joinpath(target).exists(), f"{path} links to {target}"


def test_the_architecture_lists_every_module_as_it_describes_itself() -> None:
    done = subprocess.run([sys.executable, ROOT / "docs/module_tree.py", "--check"])
    assert done.returncode == 0, "run: python docs/module_tree.py"


@pytest.mark.parametrize("path", sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("examples/*.py")))
def test_every_example_runs(path: str, tmp_path: Path) -> None:
    done = python(ROOT / path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


CONCEPTS = re.findall(r"^\| (?!word|-)([^|]+?) \|", (ROOT / "docs/concepts.md").read_text(), re.M)


def test_the_glossary_is_short_and_known_to_the_readme() -> None:
    assert 0 < len(CONCEPTS) <= 20
    assert "docs/concepts.md" in README


@pytest.mark.parametrize("word", CONCEPTS)
def test_every_word_of_the_glossary_is_used_in_the_source(word: str) -> None:
    spelled = re.compile(rf"\b{word.replace(' ', '[ _]?')}s?\b", re.I)
    texts = (path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert any(spelled.search(text) for text in texts)


# --- the journeys of docs/architecture.md ---

STEP = re.compile(r"^ *([a-z_/]+\.py):([\w.]+)(?:  |$)", re.M)


def journeys() -> dict[str, list[tuple[str, str]]]:
    """The steps of each journey: file and qualified name."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    titles = re.findall(r"^### Journey: (.*)$", page, re.M)
    texts = re.split(r"^### Journey: .*$", page, flags=re.M)[1:]
    return {title: STEP.findall(blocks(text, "")[0]) for title, text in zip(titles, texts, strict=True)}


def functions_of(path: Path) -> set[str]:
    """The qualified names of the functions and methods of a module."""
    tree = ast.parse(path.read_text())
    members = [
        (f"{each.name}.", node) for each in ast.walk(tree) if isinstance(each, ast.ClassDef) for node in each.body
    ]
    return {
        prefix + node.name
        for prefix, node in [*members, *(("", node) for node in tree.body)]
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("title", journeys())
def test_every_step_of_a_journey_exists(title: str) -> None:
    steps = journeys()[title]
    assert len(steps) > 20, "a journey is written as file:function"
    missing = [f"{file}:{name}" for file, name in steps if name not in functions_of(ROOT / "src/headway" / file)]
    assert not missing


def test_four_journeys_are_written_down() -> None:
    assert len(journeys()) == 4


# --- benchmarks ---


def scripts() -> list[str]:
    found = sorted((ROOT / "benchmarks").glob("*.py"))
    return [path.name for path in found if "ArgumentParser" in path.read_text()]


@pytest.mark.parametrize("name", scripts())
def test_every_benchmark_can_be_imported(name: str, tmp_path: Path) -> None:
    done = python(ROOT / "benchmarks" / name, "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
