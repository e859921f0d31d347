"""The handler of the ``headway`` logger: writes the library's log records to stderr, each line once.

All messages of the library are records of loggers below ``headway``. The handler acts as if it were called last, after
the root logger's handlers: ``propagate = False`` disables it, and it ignores records that another handler writes to
stdout or stderr.

    headway.run, headway.train.torch.sampler, …  ──►  headway ──►  root ──►  (ConsoleHandler)
                                                      handlers     handlers
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

from headway.core.messages import Stream
from headway.observe.terminal_text import clear_live_lines, plain, write_line

LIBRARY = "headway"
_FORMATTER = logging.Formatter("headway: %(message)s")


class ConsoleHandler(logging.Handler):
    """Writes ``headway: <message>`` to stderr, above the live status lines."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_FORMATTER)
        self.logger_level = logging.NOTSET  # the logger's level as set by install()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if is_written(record):
                write_line(plain(self.format(record), lines=True), sys.stderr)
            else:
                clear_live_lines()
        except Exception:  # around the user's handlers and formatters; reported as logging reports it
            self.handleError(record)


def install(level: str | None = None) -> None:
    """Add the handler to the ``headway`` logger, and lower the level to ``level`` unless the user set one."""
    logger = logging.getLogger(LIBRARY)
    handler = next((each for each in logger.handlers if isinstance(each, ConsoleHandler)), None)
    if handler is None:
        handler = ConsoleHandler()
        logger.addHandler(handler)
    if level is not None and logger.level in (logging.NOTSET, handler.logger_level):
        current = logger.level or logging.INFO
        handler.logger_level = min(number(level), current)
        logger.setLevel(handler.logger_level)


def is_written(record: logging.LogRecord) -> bool:
    """Whether the ConsoleHandler writes the record, because no other handler writes it to the console."""
    loggers = list(_chain(record))
    handlers = [handler for logger in loggers for handler in logger.handlers]
    return (
        loggers[-1] is logging.root
        and any(isinstance(handler, ConsoleHandler) for handler in handlers)
        and not any(record.levelno >= handler.level and console_stream(handler) is not None for handler in handlers)
    )


def number(level: str) -> int:
    """The numeric value of a level name."""
    return logging.getLevelNamesMapping()[level]


def console_stream(handler: logging.Handler) -> Stream | None:
    """The stream of this process's console that the handler writes to, or None."""
    if not getattr(handler, "is_console", True):
        return None
    if type(handler).__module__ == "rich.logging":
        return "err"
    stream = getattr(handler, "stream", None) if isinstance(handler, logging.StreamHandler) else None
    if stream is None or isinstance(handler, logging.FileHandler):
        return None
    if _is_same(stream, sys.stdout, sys.__stdout__):
        return "out"
    return "err" if _is_same(stream, sys.stderr, sys.__stderr__) else None


def _is_same(stream: object, current: object, original: object) -> bool:
    """Whether ``stream`` is this standard stream. While live lines are drawn, ``current`` is a proxy made by rich."""
    return any(stream is each for each in (current, original, getattr(current, "rich_proxied_file", None)))


def _chain(record: logging.LogRecord) -> Iterator[logging.Logger]:
    """The loggers whose handlers receive the record."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None:
        yield logger
        logger = logger.parent if logger.propagate else None
