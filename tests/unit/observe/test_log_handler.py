"""The handler of the ``headway`` logger: each record once, wherever the user's handlers write."""

from __future__ import annotations

import io
import logging
import logging.config
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.observe import log_handler
from headway.observe.log_handler import ConsoleHandler, install, is_written

LIBRARY = logging.getLogger("headway")
EVENTS = logging.getLogger("headway.run")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Reset the logging configuration for a test, and restore it afterwards."""
    loggers = (logging.root, LIBRARY, EVENTS)
    before = [(list(each.handlers), each.level, each.propagate, each.disabled) for each in loggers]
    LIBRARY.handlers.clear()
    LIBRARY.setLevel(logging.NOTSET)
    yield
    logging.disable(logging.NOTSET)
    for logger, (handlers, level, propagate, disabled) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate, logger.disabled = propagate, disabled


Text = pytest.CaptureFixture[str]


def quiet() -> None:
    """Remove all handlers of the root logger, including the handlers that pytest adds for each test."""
    logging.root.handlers.clear()


def test_without_other_handlers_events_go_to_stderr(capsys: Text) -> None:
    install("INFO")
    EVENTS.info("run begins")
    logging.getLogger("headway.train.torch.sampler").warning("uneven")
    EVENTS.debug("too low")
    assert capsys.readouterr().err == "headway: run begins\nheadway: uneven\n"


def test_a_console_handler_of_the_root_logger_takes_the_record_over(capsys: Text) -> None:
    quiet()
    install("INFO")
    logging.basicConfig(format="%(levelname)s:%(name)s:%(message)s")
    EVENTS.info("run begins")
    assert capsys.readouterr().err == "INFO:headway.run:run begins\n"


def test_a_console_handler_leaves_records_below_its_level(capsys: Text) -> None:
    install("INFO")
    logging.root.addHandler(handler := logging.StreamHandler())
    handler.setLevel(logging.WARNING)
    EVENTS.info("run begins")
    EVENTS.warning("attempt 1 ended")
    assert capsys.readouterr().err == "headway: run begins\nattempt 1 ended\n"


def test_a_file_handler_gets_what_the_console_shows(capsys: Text, tmp_path: Path) -> None:
    quiet()
    install("INFO")
    logging.basicConfig(filename=tmp_path / "log", format="%(message)s")
    EVENTS.info("run begins")
    logging.root.handlers[0].close()
    assert (tmp_path / "log").read_text() == "run begins\n"
    assert capsys.readouterr().err == "headway: run begins\n"


def test_without_propagation_only_the_users_handler_gets_records(capsys: Text) -> None:
    install("INFO")
    own = io.StringIO()
    LIBRARY.addHandler(logging.StreamHandler(own))
    LIBRARY.propagate = False
    EVENTS.info("run begins")
    assert (own.getvalue(), capsys.readouterr().err) == ("run begins\n", "")


def test_the_level_of_the_user_stays(capsys: Text) -> None:
    LIBRARY.setLevel(logging.WARNING)
    install("DEBUG")
    EVENTS.info("run begins")
    assert capsys.readouterr().err == ""
    assert LIBRARY.level == logging.WARNING


def test_a_run_with_a_lower_level_lowers_that_of_the_logger_and_a_higher_one_does_not_raise_it() -> None:
    for level, expected in (("ERROR", logging.INFO), ("DEBUG", logging.DEBUG), ("WARNING", logging.DEBUG)):
        install(level)
        assert LIBRARY.level == expected
    assert len(LIBRARY.handlers) == 1


def test_logging_disable_silences_the_library(capsys: Text) -> None:
    install("INFO")
    logging.disable(logging.WARNING)
    EVENTS.warning("attempt 1 ended")
    assert capsys.readouterr().err == ""


def test_a_dict_config_for_the_library_replaces_the_console(capsys: Text, tmp_path: Path) -> None:
    install("INFO")
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {"file": {"class": "logging.FileHandler", "filename": tmp_path / "log"}},
            "loggers": {"headway": {"level": "INFO", "handlers": ["file"], "propagate": False}},
        }
    )
    install("INFO")  # by the next run
    EVENTS.info("run begins")
    LIBRARY.handlers[0].close()
    assert (tmp_path / "log").read_text() == "run begins\n"
    assert capsys.readouterr().err == ""


def test_a_filter_of_the_users_drops_records(capsys: Text) -> None:
    install("INFO")
    LIBRARY.handlers[0].addFilter(lambda record: "begins" not in record.getMessage())
    EVENTS.info("run begins")
    EVENTS.info("finished")
    assert capsys.readouterr().err == "headway: finished\n"


def test_control_characters_do_not_reach_the_terminal(capsys: Text) -> None:
    install("INFO")
    EVENTS.info("name \x1b]0;title\x07")
    assert capsys.readouterr().err == "headway: name \\x1b]0;title\\x07\n"


def test_a_formatter_that_fails_is_reported_and_does_not_raise(capsys: Text) -> None:
    install("INFO")
    LIBRARY.handlers[0].setFormatter(logging.Formatter("%(missing)s"))
    EVENTS.info("run begins")
    assert "--- Logging error ---" in capsys.readouterr().err


def test_a_record_is_written_by_one_handler() -> None:
    record = logging.LogRecord("headway.run", logging.INFO, __file__, 1, "run begins", None, None)
    assert not is_written(record), "there is no handler"
    LIBRARY.addHandler(ConsoleHandler())
    assert is_written(record)
    assert log_handler.console_stream(logging.StreamHandler(sys.stdout)) == "out"
