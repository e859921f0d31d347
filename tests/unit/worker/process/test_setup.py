"""A worker's process looks like the driver's, and each rank has different random states."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from headway.core.messages import ProcessSetup
from headway.worker.process.setup import apply_setup, seed_random
from recording import start_message


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Restore the state of this process after each test."""
    monkeypatch.setattr(os, "environ", {"HOME": "/home/you"})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.chdir(tmp_path)


def setup_of(env: dict[str, str], cwd: Path) -> ProcessSetup:
    return ProcessSetup(env=env, cwd=str(cwd), sys_path=tuple(sys.path), argv=("train.py", "--fast"))


def test_the_environment_of_the_driver_replaces_that_of_the_fork_server(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    apply_setup(setup_of({"A": "1"}, tmp_path / "there"))
    assert os.environ == {"A": "1"}
    assert Path.cwd() == tmp_path / "there"
    assert sys.argv == ["train.py", "--fast"]


def test_in_the_next_run_what_user_code_has_set_stays_unless_the_driver_has_changed_it(tmp_path: Path) -> None:
    before = setup_of({"A": "1", "B": "1", "C": "1"}, tmp_path)
    apply_setup(before)
    os.environ.update({"A": "mine", "B": "mine", "NEW": "mine"})
    apply_setup(setup_of({"A": "1", "B": "2"}, tmp_path), before)
    assert os.environ == {"A": "mine", "B": "2", "NEW": "mine"}


def test_random_states_are_equal_for_the_same_rank_and_differ_between_ranks(tmp_path: Path) -> None:
    def drawn(rank: int) -> float:
        start = start_message(tmp_path, rank=rank)
        seed_random(start.run, start.place)
        return random.random()

    state = random.getstate()
    try:
        first, second, again = drawn(0), drawn(1), drawn(0)
    finally:
        random.setstate(state)
    assert first == again
    assert first != second


def test_output_of_python_and_of_c_goes_to_the_log_files(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from headway.worker.process.setup import redirect_output\n"
        "redirect_output(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print('half a character: \\udcff'); os.write(1, b'from C\\n'); print('oh', file=sys.stderr)\n"
    )
    paths = [str(tmp_path / name) for name in ("out", "err")]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
    assert (tmp_path / "out").read_text() == "half a character: \\udcff\nfrom C\n"
    assert (tmp_path / "err").read_text() == "oh\n"
