"""The driver's ``logging`` configuration, copied to the workers.

Levels are copied for every logger. A handler that writes to the console becomes one that writes to the rank's log, with
the same level, formatter and filters; the console shows that log with the rank in front. Other handlers (files,
sockets, services) are not copied, because N ranks would write to one file. If a logger has only such handlers, their
records go to the rank's log.

    driver: root ── StreamHandler(stderr), "%(levelname)s %(message)s"      worker: root ── the same, to rank-N.err
             └─ FileHandler("train.log")                                              (no file)
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle

from headway.core.messages import HandlerSettings, LoggerSettings, LoggingSettings, Stream
from headway.observe.log_handler import ConsoleHandler, console_stream, install, is_written

_logger = logging.getLogger(__name__)

MAX_PICKLED_BYTES = 1 << 16  # size of a formatter with its filters; a larger one contains large parts of the driver
_LEVEL_AND_NAME = logging.Formatter(logging.BASIC_FORMAT)
_IGNORED = (logging.NullHandler, ConsoleHandler)  # every process has its own ConsoleHandler
_FOR_PROGRAMS = (
    "torch._logging._internal"  # compiler traces, which torch writes only to a directory that the user sets for them
)


# --- in the driver ---


def current_settings() -> LoggingSettings:
    """The configuration of this process."""
    names = {level: name for level, name in logging._levelToName.items() if logging.getLevelName(name) == level}
    return LoggingSettings(
        loggers=tuple(_loggers()),
        disabled_level=logging.root.manager.disable,
        level_names=names,
        captures_warnings=getattr(logging, "_warnings_showwarning", None) is not None,
    )


def _loggers() -> Iterator[LoggerSettings]:
    """The root logger, and all others that were configured."""
    known = list(logging.root.manager.loggerDict.values())
    for logger in (logging.root, *(each for each in known if isinstance(each, logging.Logger))):
        handlers = tuple(_handlers(logger))
        if logger is logging.root or handlers or logger.level or logger.disabled or not logger.propagate:
            yield LoggerSettings(
                name="" if logger is logging.root else logger.name,
                level=logger.level,
                propagate=logger.propagate,
                disabled=logger.disabled,
                handlers=handlers,
            )


def _handlers(logger: logging.Logger) -> Iterator[HandlerSettings]:
    found = [each for each in logger.handlers if not isinstance(each, _IGNORED) and _is_for_people(each)]
    consoles = [(handler, stream) for handler in found if (stream := console_stream(handler)) is not None]
    for handler, stream in consoles:
        yield HandlerSettings(stream=stream, level=handler.level, style=_style(handler))
    if found and not consoles and (logger is logging.root or not logger.propagate):
        lowest = min(found, key=lambda handler: handler.level)
        yield HandlerSettings(stream="err", level=lowest.level, style=_style(lowest), replaces_file=True)


def _is_for_people(handler: logging.Handler) -> bool:
    return type(handler).__module__ != _FOR_PROGRAMS


def _style(handler: logging.Handler) -> bytes:
    """Pickle the formatter and filters; use a default formatter if that fails or the handler does not write text."""
    is_text = isinstance(handler, logging.StreamHandler)
    formatter = handler.formatter if is_text else _LEVEL_AND_NAME
    for style in ((formatter, list(handler.filters)), (_LEVEL_AND_NAME, list(handler.filters))):
        try:
            data: bytes = cloudpickle.dumps(style)
        except Exception as error:  # around the user's classes
            _logger.debug("a handler of the driver is copied without its formatter: %r", error)
            continue
        if len(data) <= MAX_PICKLED_BYTES:
            return data
    return b""


# --- in a worker ---


class RankHandler(logging.StreamHandler[Any]):
    """Writes to the rank's log, until code in the worker adds a console handler to the same logger.

    If it replaces a file handler, it also ignores records that the ConsoleHandler writes to the same log.
    """

    def __init__(self, stream: Stream, owner: logging.Logger, *, replaces_file: bool = False) -> None:
        super().__init__(sys.stdout if stream == "out" else sys.stderr)
        self.is_console = not replaces_file
        self._owner = owner

    def emit(self, record: logging.LogRecord) -> None:
        handlers = (each for each in self._owner.handlers if not isinstance(each, RankHandler))
        if any(console_stream(each) is not None for each in handlers):
            return
        if self.is_console or not is_written(record):
            super().emit(record)


def apply(settings: LoggingSettings) -> None:
    """Configure this process like the driver. Its streams must already be redirected to the rank's logs."""
    for level, name in settings.level_names.items():
        logging.addLevelName(level, name)
    logging.disable(settings.disabled_level)
    logging.captureWarnings(settings.captures_warnings)
    for each in settings.loggers:
        logger = logging.getLogger(each.name)
        logger.setLevel(each.level)
        logger.propagate, logger.disabled = each.propagate, each.disabled
        _remove_inherited(logger)
        for handler in each.handlers:
            logger.addHandler(_handler(handler, logger))
    install()
    _let_basic_config_replace_inherited()


def _handler(settings: HandlerSettings, owner: logging.Logger) -> RankHandler:
    handler = RankHandler(settings.stream, owner, replaces_file=settings.replaces_file)
    handler.setLevel(settings.level)
    try:
        formatter, filters = cloudpickle.loads(settings.style) if settings.style else (_LEVEL_AND_NAME, [])
    except Exception as error:  # around the user's classes, whose module may be missing here
        _logger.debug("the formatter of a handler of the driver cannot be used here: %r", error)
        formatter, filters = _LEVEL_AND_NAME, []
    handler.setFormatter(formatter)
    for each in filters:
        handler.addFilter(each)
    return handler


def _remove_inherited(logger: logging.Logger) -> None:
    for handler in [each for each in logger.handlers if isinstance(each, RankHandler)]:
        logger.removeHandler(handler)


def _let_basic_config_replace_inherited() -> None:
    """Let ``basicConfig()`` calls in user code replace copied handlers, which would otherwise turn it into a no-op."""
    original = logging.basicConfig
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def basic_config(**options: Any) -> None:
        if all(isinstance(each, RankHandler) for each in logging.root.handlers):
            _remove_inherited(logging.root)
        original(**options)

    logging.basicConfig = basic_config
