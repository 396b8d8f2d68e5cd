"""PopTorch's log: its levels, and the logger "poptorch" that everything of the emulator writes to."""

from __future__ import annotations

import datetime
import logging
import os
import sys

logger = logging.getLogger("poptorch")

_LEVELS = {  # name: (number in the binding, level of Python's logging)
    "TRACE": (0, logging.DEBUG),
    "TRACE_ALL": (0, logging.DEBUG),
    "DEBUG": (1, logging.DEBUG),
    "DEBUG_IR": (1, logging.DEBUG),
    "INFO": (2, logging.INFO),
    "WARN": (3, logging.WARNING),
    "ERR": (4, logging.ERROR),
    "OFF": (6, logging.CRITICAL + 1),
}
_PUBLIC = [name for name in _LEVELS if name not in ("TRACE_ALL", "DEBUG_IR")]


def setPopartLogLevel(level):
    """Takes the level of PopART's own log, of which there is none here."""
    if not isinstance(level, str) or level not in _LEVELS:
        raise ValueError(f"PopART has no log level {level!r}. Valid: {', '.join(_PUBLIC)}.")


def setLogLevel(level, update_cpp=True):
    """Sets how much is logged, by name or by the binding's number; `update_cpp` has no binding to reach here."""
    if isinstance(level, int) and not isinstance(level, bool):
        named = [name for name in _PUBLIC if _LEVELS[name][0] == level]
        if not named:
            valid = ", ".join(f"{_LEVELS[name][0]} ({name})" for name in _PUBLIC)
            raise ValueError(f"PopTorch has no log level {level}. Valid: {valid}.")
        level = named[0]
    if not isinstance(level, str) or level not in _LEVELS:
        raise ValueError(f"PopTorch has no log level {level!r}. Valid: {', '.join(_PUBLIC)}.")
    logger.setLevel(_LEVELS[level][1])


class _PoptorchFormatter(logging.Formatter):
    """One line a record: time, name, level, text; coloured where a person reads it."""

    _COLOURS = {logging.DEBUG: 36, logging.WARNING: 33, logging.ERROR: 31, logging.CRITICAL: 31}

    def outputToFile(self):
        return not sys.stdout.isatty() or not sys.stderr.isatty()

    def __init__(self):
        super().__init__("[%(asctime)s] [%(name)s] [%(levelname)s] %(message)s")

    def formatTime(self, record, datefmt=None):
        when = datetime.datetime.fromtimestamp(record.created)
        return when.strftime(datefmt) if datefmt else f"{when:%H:%M:%S}.{int(record.msecs):03d}"

    def format(self, record):
        line = super().format(
            logging.makeLogRecord({**record.__dict__, "levelname": record.levelname.lower()})
        )
        colour = self._COLOURS.get(record.levelno)
        return line if colour is None or self.outputToFile() else f"\x1b[1;{colour}m{line}\x1b[0m"


class _Console(logging.StreamHandler):  # type: ignore[type-arg]  # takes no argument before Python 3.11
    """Writes to what sys.stderr is at the time, which a test or a notebook may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _start() -> None:
    if not logger.handlers:
        console = _Console()
        console.setFormatter(_PoptorchFormatter())
        logger.addHandler(console)
    setLogLevel(os.environ.get("POPTORCH_LOG_LEVEL", "WARN"))


_start()
