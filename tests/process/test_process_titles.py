"""Titles of processes in ``ps``: every process of a run names the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from support import Driver, python, wait_until, write_script


def title(process: psutil.Process) -> str:
    return Path(f"/proc/{process.pid}/cmdline").read_bytes().rstrip(b"\0").decode()


def name(process: psutil.Process) -> str:
    return Path(f"/proc/{process.pid}/comm").read_text().strip()


def test_every_process_of_a_run_has_a_title(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import time
        from headway import train

        def train_func():
            print("ready", flush=True)
            time.sleep(60)

        train.DataParallelTrainer(
            train_func, scaling_config=train.ScalingConfig(2), run_config=train.RunConfig(name="my-run")
        ).fit()
        """,
    )
    with Driver(script) as driver:
        driver.wait_for("[r0] ready")
        driver.wait_for("[r1] ready")
        found = {title(process): name(process) for process in driver.descendants()}
        of = f"process {driver.process.pid} (script.py)"
        assert found == {
            f"headway: reaper, ends what {of} leaves behind": "headway:reaper",
            f"headway: fork server of {of}": "headway:forksrv",
            "headway: rank 0 of 2, run my-run": "r0:my-run",
            "headway: rank 1 of 2, run my-run": "r1:my-run",
        }


def test_a_title_is_cut_and_leaves_arguments_and_environment_alone(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import ctypes, os, subprocess, sys
        from headway.core.process.title import set_title
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_char_p
        before = (dict(os.environ), list(sys.argv), open("/proc/self/environ").read())
        for title in ("short", "long " * 1000, "\\u20ac" * 500, "\\x1b]0;x\\x07\\n", "", "last"):
            set_title(title, title)
            shown = open("/proc/self/cmdline", "rb").read()
            assert shown.endswith(b"\\0"), shown
            assert shown.rstrip(b"\\0").decode().isprintable(), shown
            assert title.encode().startswith(shown.rstrip(b"\\0")) or "?" in shown.decode(), shown
        assert before == (dict(os.environ), list(sys.argv), open("/proc/self/environ").read())
        assert libc.getenv(b"AFTER") == b"stays"
        assert open("/proc/self/comm").read() == "last\\n"
        subprocess.run([sys.executable, "-c", "import sys; assert sys.argv[1:] == ['x']", "x"], check=True)
        """,
    )
    done = python(script, "an argument", env={**os.environ, "AFTER": "stays"})
    assert done.returncode == 0, done.stderr
    done = python(script, env={**os.environ, "AFTER": "stays"})
    assert done.returncode == 0, done.stderr


def test_a_forked_process_may_change_its_title(tmp_path: Path) -> None:
    code = "from headway.core.process.title import set_title; import os, time; set_title('parent', 'p'); "
    code += "os.fork() or set_title('child', 'c'); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        wait_until(lambda: {title(each) for each in psutil.Process(process.pid).children()} == {"child"}, 30)
        assert title(psutil.Process(process.pid)) == "parent"
        for each in psutil.Process(process.pid).children():
            each.kill()
        process.kill()


def test_without_memory_for_a_title_nothing_happens() -> None:
    code = "import headway.core.process.title as t; t._area = (0, 0); t.set_title('x', 'y'); "
    code += "print(open('/proc/self/cmdline').read())"
    assert "headway.core.process.title" in python("-c", code).stdout


def test_validations_and_map_processes_have_titles_too(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import time
        from headway import train
        from headway.data.execution.map_process import MapProcess

        def train_func():
            helper = MapProcess(())
            train.report({}, train.Checkpoint.from_dict({"a": 1}), validation=True)
            time.sleep(60)

        def validate(checkpoint):
            time.sleep(60)
            return {}

        train.DataParallelTrainer(
            train_func, run_config=train.RunConfig(name="my-run"), validation_config=train.ValidationConfig(validate)
        ).fit()
        """,
    )
    wanted = {
        "headway: map process of rank 0 of 1, run my-run": "headway:map",
        "headway: validation of checkpoint_000000, run my-run": "val:my-run",
    }
    with Driver(script) as driver:
        wait_until(
            lambda: wanted.keys() <= {title(process) for process in driver.descendants()}, 30, lambda: driver.output
        )
        found = {title(process): name(process) for process in driver.descendants()}
        assert {each: found[each] for each in wanted} == wanted
