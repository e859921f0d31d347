"""Log records: the driver's ``logging`` configuration applies in the workers, and to Headway's own records."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headway
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


def test_the_functions_own_configuration_takes_precedence(tmp_path: Path) -> None:
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


# --- what the library itself says ---


def test_the_library_prints_nothing_to_stdout(tmp_path: Path) -> None:
    """In a run with most of its features: restart, checkpoints, validation, callbacks, tracked state, warnings."""
    code = """
    import os, sys, torch
    from headway import train
    from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model

    class Failing(train.UserCallback):
        def after_report(self, run_context, metrics, checkpoint):
            raise ValueError("of the callback")

    def train_func(config):
        model = prepare_model(torch.nn.Linear(1, 1))
        data = torch.utils.data.TensorDataset(torch.zeros(7, 1))
        loader = prepare_data_loader(torch.utils.data.DataLoader(data, batch_size=2, shuffle=True))
        state = train.track(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        for epoch in state.epochs(3):
            for (batch,) in loader:
                model(batch).sum().backward()
            train.report({"epoch": epoch})
            if epoch == 1 and train.get_context().get_world_rank() == 1 and not os.path.exists("once"):
                open("once", "w").close()
                os._exit(3)

    result = TorchTrainer(
        train_func,
        train_loop_config={},
        scaling_config=train.ScalingConfig(2),
        run_config=train.RunConfig(
            storage_path=sys.argv[1], callbacks=[Failing()], failure_config=train.FailureConfig(1),
            checkpoint_config=train.CheckpointConfig(every_reports=1), logging_config=train.LoggingConfig("DEBUG"),
        ),
    ).fit()
    """
    done = python(write_script(tmp_path, code), tmp_path / "runs", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for said in ("headway: attempt 1 ended", "callback Failing.after_report raised", "[r0] headway: a shuffled loader"):
        assert done.stderr.count(said) >= 1, done.stderr


@pytest.mark.parametrize(
    ("configure", "first", "last"),
    [
        ("", "headway: run first starts with 1 worker", "headway: finished"),
        (
            "logging.basicConfig(format='%(levelname)s|%(run)s|%(message)s')",
            "INFO|first|run first starts with 1 worker",
            "INFO|first|finished",
        ),
        (
            "logging.basicConfig(filename=sys.argv[1] + '.log')",
            "headway: run first starts with 1 worker",
            "headway: finished",
        ),
        ("logging.getLogger('headway').setLevel(logging.WARNING)", None, None),
        ("logging.disable(logging.CRITICAL)", None, None),
        (
            "logging.getLogger('headway').addHandler(logging.FileHandler(sys.argv[1] + '.log'));"
            "logging.getLogger('headway').propagate = False",
            None,
            None,
        ),
    ],
    ids=["unconfigured", "basicConfig", "basicConfig of a file", "level", "disable", "own handler"],
)
@pytest.mark.parametrize("when", ["before the import", "after the import", "after a run"])
def test_the_users_configuration_decides_where_events_go(
    tmp_path: Path, configure: str, first: str | None, last: str | None, when: str
) -> None:
    script = f"""
    import logging, sys
    when, configure = {when!r}, {configure!r}
    if when == "before the import":
        exec(configure)
    from headway import train
    if when == "after the import":
        exec(configure)

    def fit(name):
        run = train.RunConfig(storage_path=sys.argv[1], name=name)
        train.DataParallelTrainer(lambda: None, scaling_config=train.ScalingConfig(0), run_config=run).fit()

    if when == "after a run":
        fit("zero")
        print("----", file=sys.stderr)
        exec(configure)
    fit("first")
    """
    done = python(write_script(tmp_path, script), tmp_path / "runs")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    said = done.stderr.rpartition("----\n")[2]
    if first is None:
        assert said == ""
    else:
        begins, finished = said.splitlines()
        assert begins.startswith(first.replace("with 1 worker", "in this process"))
        assert finished.startswith(last)
    if "FileHandler" in configure or "filename" in configure:
        assert (tmp_path / "runs.log").read_text().count("run first starts") == 1


def test_the_level_of_the_environment_holds_for_runs_without_a_logging_config(tmp_path: Path) -> None:
    code = """
    import sys
    from headway import train

    for name, options in (("quiet", {}), ("loud", {"logging_config": train.LoggingConfig("INFO")})):
        run = train.RunConfig(storage_path=sys.argv[1], name=name, **options)
        train.DataParallelTrainer(lambda: None, scaling_config=train.ScalingConfig(0), run_config=run).fit()
    """
    script = write_script(tmp_path, code)
    done = python(script, tmp_path / "runs", env={**os.environ, "HEADWAY_LOG_LEVEL": "warning"})
    assert done.returncode == 0, done.stderr
    assert "run loud starts" in done.stderr
    assert "run quiet" not in done.stderr
    refused = python(script, tmp_path / "runs", env={**os.environ, "HEADWAY_LOG_LEVEL": "LOUD"})
    assert "ConfigError: HEADWAY_LOG_LEVEL must be one of DEBUG, INFO, WARNING, ERROR, got 'LOUD'" in refused.stderr


def test_what_the_library_says_in_a_worker_follows_the_drivers_configuration(tmp_path: Path) -> None:
    code = """
    import logging, sys
    from headway import train
    if sys.argv[2] == "format":
        logging.basicConfig(format="%(levelname)s|%(name)s")
    if sys.argv[2] == "level":
        logging.getLogger("headway").setLevel(logging.ERROR)

    def train_func():
        logging.getLogger("headway.train.functions").warning("of the library")

    run = train.RunConfig(storage_path=sys.argv[1], name=sys.argv[2])
    train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(2), run_config=run).fit()
    """
    script = write_script(tmp_path, code)
    for how, shown in (
        ("none", "headway: of the library"),
        ("format", "WARNING|headway.train.functions"),
        ("level", ""),
    ):
        done = python(script, tmp_path / "runs", how)
        assert done.returncode == 0, done.stderr
        lines = sorted(line for line in done.stderr.splitlines() if line.startswith("[r"))
        assert lines == ([f"[r{rank}] {shown}" for rank in (0, 1)] if shown else [])
        log = (tmp_path / "runs" / how / "logs" / "rank-1.err").read_text()
        assert log == (shown and shown + "\n")


ASKED_TO_PRINT = ("show", "handle_result")  # Dataset.show(), and the PrintCallback of RaySGD


def test_no_module_but_the_commands_prints_to_stdout() -> None:
    source = Path(headway.__file__).parent
    found = []
    for path in source.rglob("*.py"):
        functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
        for function in (each for each in functions if each.name not in ASKED_TO_PRINT):
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            prints = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
            if any("file" not in {keyword.arg for keyword in call.keywords} for call in prints):
                found.append(f"{path.relative_to(source)}: {function.name}")
    assert [each for each in found if not each.startswith("cli/")] == []
