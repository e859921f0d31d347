"""What the driver configures with ``logging`` holds in the workers, too: levels, formats, and each record once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support import python, write_script

HEAD = """
    import logging, logging.config, sys
    from headway import train

    log = logging.getLogger("project.model")

    def train_func():
        log.debug("debug of the function")
        log.info("info of the function")
        log.warning("warning of the function")

    def fit(num_workers=1):
        run = train.RunConfig(storage_path=sys.argv[1], name=sys.argv[2] if len(sys.argv) > 2 else None)
        scaling = train.ScalingConfig(num_workers)
        return train.DataParallelTrainer(train_func, scaling_config=scaling, run_config=run).fit()
"""


def run(folder: Path, code: str) -> list[str]:
    """The lines of the training function on the console."""
    done = python(write_script(folder, HEAD + code), folder / "runs", cwd=folder)
    assert done.returncode == 0, done.stderr
    return sorted(line for line in (done.stdout + done.stderr).splitlines() if "of the function" in line)


def test_records_appear_once_in_the_drivers_format_with_the_rank_in_front(tmp_path: Path) -> None:
    code = """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s|%(name)s|%(message)s")
    print(open(fit(2).path + "/logs/rank-1.err").read())
    """
    expected = ["INFO|project.model|info of the function", "WARNING|project.model|warning of the function"]
    assert run(tmp_path, code) == sorted([*expected, *(f"[r{rank}] {line}" for rank in (0, 1) for line in expected)])


def test_without_a_configuration_warnings_appear_as_in_any_script(tmp_path: Path) -> None:
    assert run(tmp_path, "\n    fit()\n") == ["[r0] warning of the function"]


def test_in_the_drivers_own_process_records_are_not_doubled(tmp_path: Path) -> None:
    code = """
    logging.basicConfig(level=logging.INFO)
    fit(0)
    """
    assert run(tmp_path, code) == [
        "INFO:project.model:info of the function",
        "WARNING:project.model:warning of the function",
    ]


def test_levels_files_and_formatters_of_a_dict_config(tmp_path: Path) -> None:
    code = """
    class Shouting(logging.Formatter):
        def format(self, record):
            return super().format(record).upper()

    logging.config.dictConfig({
        "version": 1,
        "formatters": {"loud": {"()": Shouting, "format": "%(message)s"}},
        "handlers": {
            "console": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "loud"},
            "file": {"class": "logging.FileHandler", "filename": "driver.log"},
        },
        "loggers": {
            "project": {"level": "DEBUG", "handlers": ["console", "file"], "propagate": False},
            "other": {"level": "INFO", "handlers": ["file"], "propagate": False},
        },
        "disable_existing_loggers": False,
    })
    logging.getLogger("project.noisy").setLevel(logging.ERROR)

    def train_func():
        log.debug("debug of the function")
        logging.getLogger("project.noisy").info("not told")
        logging.getLogger("other").info("other of the function")

    path = fit().path
    print([open(f"{path}/logs/rank-0.{name}").read() for name in ("out", "err")], open("driver.log").read())
    """
    done = python(write_script(tmp_path, HEAD + code), tmp_path / "runs", cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "['DEBUG OF THE FUNCTION\\n', 'other of the function\\n'] ", done.stderr


def test_what_the_function_configures_itself_counts(tmp_path: Path) -> None:
    code = """
    logging.basicConfig(level=logging.ERROR, format="driver %(message)s")

    def train_func():
        logging.basicConfig(level=logging.INFO, format="function %(message)s")
        log.info("info of the function")

    fit()
    """
    assert run(tmp_path, code) == ["[r0] function info of the function"]


def test_a_script_of_headway_run_configures_itself(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import logging
        logging.basicConfig(level=logging.INFO)
        logging.info("info of the script")
        """,
    )
    command = [sys.executable, "-m", "headway", "run", "--storage-path", str(tmp_path / "runs"), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert re.findall(r".*info of the script", done.stdout + done.stderr) == ["[r0] INFO:root:info of the script"]


def test_a_validation_logs_as_the_driver_does(tmp_path: Path) -> None:
    code = """
    logging.basicConfig(level=logging.INFO)

    def validate(checkpoint):
        log.info("info of the function")
        return {"accuracy": 1.0}

    def train_func():
        train.report({"a": 1}, checkpoint=train.Checkpoint.from_dict({"a": 1}), validation=True)

    run = train.RunConfig(storage_path=sys.argv[1])
    path = train.DataParallelTrainer(
        train_func, validation_config=train.ValidationConfig(validate), run_config=run,
        scaling_config=train.ScalingConfig(1),
    ).fit().path
    import pathlib
    print(*(each.read_text() for each in pathlib.Path(path, "logs").rglob("*valid*") if each.is_file()))
    """
    assert "INFO:project.model:info of the function" in [line.strip() for line in run(tmp_path, code)]
