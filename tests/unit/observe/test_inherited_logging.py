"""The driver's logging configuration as a value, and a process that is configured by it."""

from __future__ import annotations

import io
import logging
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.core.messages import LoggerSettings
from headway.observe import inherited_logging
from headway.observe.inherited_logging import RankHandler, apply, current_settings

NAME = "test_inherited_logging"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    level, basic_config = logging.root.level, logging.basicConfig
    yield
    logging.root.setLevel(level)
    logging.basicConfig = basic_config
    logging.disable(logging.NOTSET)
    for name in [each for each in logging.root.manager.loggerDict if each.startswith(NAME)]:
        del logging.root.manager.loggerDict[name]


def quiet() -> None:
    """Remove all handlers, including the handlers that pytest adds for each test."""
    logging.root.handlers.clear()


def settings_of(name: str) -> LoggerSettings:
    return next(each for each in current_settings().loggers if each.name == name)


def as_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> tuple[io.StringIO, io.StringIO]:
    """Apply the configuration as a worker does, with its own streams and handlers."""
    settings = pickle.loads(pickle.dumps(current_settings()))
    logging.root.handlers.clear()
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    apply(settings)
    return out, err


def test_a_console_handler_is_copied_with_level_format_and_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet()
    handler = logging.StreamHandler(sys.stdout)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("{levelname}: {message}", style="{"))
    handler.addFilter(logging.Filter(NAME))
    logging.root.addHandler(handler)
    out, err = as_in_a_worker(monkeypatch)
    logging.getLogger(NAME).info("too low")
    logging.getLogger(NAME).warning("yes")
    logging.getLogger("other").error("filtered")
    assert (out.getvalue(), err.getvalue()) == ("WARNING: yes\n", "")


def test_file_handlers_are_not_copied_but_their_records_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    quiet()
    logging.basicConfig(filename=tmp_path / "driver.log", level=logging.INFO, format="file %(message)s")
    [file] = logging.root.handlers
    _, err = as_in_a_worker(monkeypatch)
    logging.getLogger(NAME).info("of a rank")
    file.close()
    assert err.getvalue() == "file of a rank\n"
    assert (tmp_path / "driver.log").read_text() == ""


def test_a_file_handler_beside_a_console_handler_is_not_copied(tmp_path: Path) -> None:
    quiet()
    logging.basicConfig(handlers=[logging.StreamHandler(), file := logging.FileHandler(tmp_path / "driver.log")])
    file.close()
    assert len(settings_of("").handlers) == 1


def test_a_null_handler_is_not_copied() -> None:
    quiet()
    logging.root.addHandler(logging.NullHandler())
    assert settings_of("").handlers == ()


def test_levels_and_switches_of_loggers_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    logging.addLevelName(15, "CHATTY")
    logging.getLogger(f"{NAME}.loud").setLevel(15)
    logging.getLogger(f"{NAME}.off").disabled = True
    logging.getLogger(f"{NAME}.alone").propagate = False
    _, err = as_in_a_worker(monkeypatch)
    for name in ("loud", "off", "alone", "plain"):
        logging.getLogger(f"{NAME}.{name}").log(15, name)
    logging.disable(logging.ERROR)
    assert err.getvalue() == "CHATTY loud\n"
    assert current_settings().disabled_level == logging.ERROR


def test_a_formatter_that_does_not_pickle_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet()
    formatter: Any = logging.Formatter("lost %(message)s")
    formatter.file = sys.__stderr__
    logging.basicConfig(level=logging.INFO)
    logging.root.handlers[0].setFormatter(formatter)
    _, err = as_in_a_worker(monkeypatch)
    logging.getLogger(NAME).info("kept")
    assert err.getvalue() == f"INFO:{NAME}:kept\n"


def test_a_console_handler_of_the_workers_own_code_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library adds a handler on import: in the driver before the run, in the worker after it has started."""
    quiet()
    logger = logging.getLogger(NAME)
    logger.addHandler(driver := logging.StreamHandler())
    logger.propagate = False
    settings = current_settings()
    logger.removeHandler(driver)
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    apply(settings)
    logger.warning("one")
    logger.addHandler(logging.StreamHandler())
    logger.warning("two")
    assert err.getvalue() == "one\ntwo\n"


def test_a_second_configuration_replaces_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    settings = current_settings()
    logging.root.handlers.clear()
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    apply(settings)
    apply(settings)
    logging.getLogger(NAME).info("once")
    assert err.getvalue() == "once\n"


def test_basic_config_in_a_worker_replaces_what_was_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet()
    logging.basicConfig(level=logging.ERROR, format="driver %(message)s")
    _, err = as_in_a_worker(monkeypatch)
    logging.basicConfig(level=logging.INFO, format="own %(message)s")
    logging.basicConfig(level=logging.INFO, format="ignored %(message)s")
    logging.getLogger(NAME).info("record")
    assert err.getvalue() == "own record\n"
    assert not any(isinstance(each, RankHandler) for each in logging.root.handlers)


def test_a_large_formatter_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet()
    monkeypatch.setattr(inherited_logging, "MAX_PICKLED_BYTES", 10)
    logging.basicConfig(level=logging.INFO, format="large %(message)s")
    [handler] = settings_of("").handlers
    assert handler.style == b""


def test_traces_that_torch_writes_for_programs_stay_out_of_the_ranks_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._logging._internal import LazyTraceHandler, trace_log

    of_torch = [each for each in trace_log.handlers if isinstance(each, LazyTraceHandler)]
    assert of_torch, "torch has set it up"
    monkeypatch.setattr(trace_log, "handlers", of_torch)  # without what pytest adds
    assert settings_of(trace_log.name).handlers == ()


@pytest.mark.parametrize("handler", ["file", "console", "none"])
def test_records_of_the_library_appear_once_in_a_ranks_log(
    handler: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    quiet()
    if handler == "file":
        logging.basicConfig(filename=tmp_path / "driver.log", format="file %(message)s")
        logging.root.handlers[0].close()
    elif handler == "console":
        logging.basicConfig(format="console %(message)s")
    _, err = as_in_a_worker(monkeypatch)
    logging.getLogger("headway.train.torch.sampler").warning("uneven")
    assert err.getvalue() == ("console uneven\n" if handler == "console" else "headway: uneven\n")
