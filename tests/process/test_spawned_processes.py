"""Processes that a training function starts with multiprocessing's "spawn" find the classes of the script."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import python, write_script

SCRIPT = """
    import multiprocessing
    from headway import train

    class Row:
        def __init__(self, number):
            self.number = number

    def doubled(row):
        return Row(2 * row.number)

    def train_func():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print("got", pool.apply(doubled, (Row(21),)).number)

    def run():
        train.DataParallelTrainer(train_func).fit()

"""


@pytest.mark.parametrize("as_module", [False, True])
def test_a_spawned_process_imports_a_script_with_a_main_guard(as_module: bool, tmp_path: Path) -> None:
    script = write_script(tmp_path, SCRIPT + "    if __name__ == '__main__':\n        run()\n")
    done = python(*(["-m", "script"] if as_module else [script]), cwd=tmp_path)
    assert "[r0] got 42" in done.stdout + done.stderr


def test_a_run_outside_the_main_guard_is_not_started_again_by_a_spawned_process(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import multiprocessing as mp\nfrom headway import train\n"
        "def train_func():\n    p = mp.get_context('spawn').Process(target=print)\n    p.start()\n    p.join()\n"
        "if __name__ == '__main__':\n    print('main')\ntrain.DataParallelTrainer(train_func).fit()\n")  # fmt: skip
    done = python(script, cwd=tmp_path)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert output.count("starts with 1 worker") == 1
    assert "would start its run again: put the lines that start the run under `if __name__" in output


def test_a_script_without_a_main_guard_is_not_imported(tmp_path: Path) -> None:
    code = """
        import multiprocessing as mp
        from headway import train

        def train_func():
            p = mp.get_context("spawn").Process(target=print, args=("spawned",))
            p.start()
            p.join()

        train.DataParallelTrainer(train_func).fit()
    """
    done = python(write_script(tmp_path, code), cwd=tmp_path)
    output = done.stdout + done.stderr
    assert output.count("starts with 1 worker") == 1
    assert "[r0] spawned" in output
