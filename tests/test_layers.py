"""The house: imports go down only, wherever they stand. What may import what is one list."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "headway"

# From the top floor to the ground. A unit may import units of lower floors; those on one floor know nothing of
# each other. Nobody imports testing, which is for tests and uses whatever it imitates or tests.
FLOORS = [
    {"__main__"},
    {"cli", "testing"},
    {"compat"},
    {"train"},
    {"control"},
    {"worker"},
    {"data", "frameworks", "diagnosis"},
    {"observe"},
    {"engine", "storage"},
    {"core"},
]

# Third-party packages, and the only modules that may import them.
OPTIONAL = {
    "torch": {
        "frameworks.torch",
        "frameworks.torch_sync_check",
        "frameworks.torch_single_process",
        "train.torch",
        "cli.quickstart",
        "data.frameworks.torch",
        "data.frameworks.device_prefetch",
    },
    "tensorflow": {"data.frameworks.tensorflow"},
    "PIL": {"data.datasource.whole_files"},
    "sklearn": {"cli.quickstart"},
    "rich": {"observe.status_line", "cli.runs", "data.execution.progress_bar"},
    "psutil": {"cli.doctor"},
    "pandas": {"train.result", "data.blocks.chunk"},
    "pyarrow": {
        "storage.run.location",
        "train.context",
        "storage.checkpoint",
        "storage.object_store",
        "data",
        "testing.contracts.data_source",
    },
    "obstore": {"storage.object_store.obstore_client"},
    "boto3": {"storage.object_store.obstore_client"},
    "fsspec": {"storage.object_store.fsspec_client"},
    "pytest": {"testing.contracts"},
    "numpy": {"train.torch", "data"},
}


@functools.cache
def modules() -> dict[str, ast.Module]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        found[name] = ast.parse(path.read_text())
    return found


def imports(tree: ast.Module) -> Iterator[str]:
    """Everything a module imports, at its top, in its functions or for type checkers only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def floor(unit: str) -> int:
    return next(number for number, units in enumerate(FLOORS) if unit in units)


@pytest.mark.parametrize("name", sorted(name for name in modules() if name))
def test_imports_go_down_only(name: str) -> None:
    unit = name.split(".")[0]
    for target in imports(modules()[name]):
        parts = target.split(".")
        if parts[0] != "headway" or len(parts) < 2 or parts[1] == "__version__":
            continue
        other = parts[1]
        if other == unit:
            continue
        assert other != "testing", f"{name} imports {target}: testing is for tests"
        assert floor(other) > floor(unit), f"{name} imports {target}, which is not below it"


def test_the_state_machine_knows_the_core_alone() -> None:
    for name, tree in modules().items():
        if name.startswith("control.machine"):
            for target in imports(tree):
                known = not target.startswith("headway") or target.startswith(
                    ("headway.core", "headway.control.machine")
                )
                assert known, f"{name} imports {target}"


def test_every_unit_has_its_floor() -> None:
    units = {name.split(".")[0] for name in modules() if name}
    assert units == set().union(*FLOORS)


def test_only_the_command_line_knows_of_older_vocabularies() -> None:
    for name, tree in modules().items():
        if name.split(".")[0] not in ("compat", "cli"):
            assert not [target for target in imports(tree) if target.startswith("headway.compat")], name


@pytest.mark.parametrize("package", OPTIONAL)
def test_optional_packages_are_imported_only_where_they_belong(package: str) -> None:
    for name, tree in modules().items():
        if any(name == allowed or name.startswith(f"{allowed}.") for allowed in OPTIONAL[package]):
            continue
        for target in imports(tree):
            assert target.split(".")[0] != package, f"{name} imports {target}"


def test_the_core_needs_the_standard_library_alone() -> None:
    import sys

    for name, tree in modules().items():
        if name.split(".")[0] == "core":
            for target in imports(tree):
                top = target.split(".")[0]
                assert top in sys.stdlib_module_names or target.startswith("headway.core"), f"{name} imports {target}"


def test_no_test_imports_a_benchmark() -> None:
    """Tests and benchmarks share the modules of tests/scenarios."""
    benchmarks = {path.stem for path in (TESTS.parent / "benchmarks").rglob("*.py")}
    assert "chaos" in benchmarks
    for path in TESTS.rglob("*.py"):
        tree = ast.parse(path.read_text())
        wrong = {target.split(".")[0] for target in imports(tree)} & benchmarks
        assert not wrong, f"{path} imports {wrong} of benchmarks/"
        if "sys.path" in ast.unparse(tree) and path != Path(__file__):
            texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
            assert "benchmarks" not in texts, f"{path} extends sys.path with benchmarks/"


def test_one_module_reads_the_environment() -> None:
    readers = set()
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
                readers.add(name)
    # The others set it, for workers and for user code; they decide nothing by it.
    assert readers == {
        "compat.as_ray",
        "compat.as_ray.ray_core",
        "core.environment",
        "control.workers.start_message",
        "engine.inline",
        "engine.fork_server",
        "frameworks.torch",
        "testing.contracts.engine",
        "train.torch.device",
        "worker.process.setup",
    }
