"""PopTorch's log: its levels, and the logger "poptorch" that everything of the emulator writes to."""

from __future__ import annotations

import logging
import os
import sys
from typing import Union

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


def setLogLevel(level: Union[str, int]):
    """Sets how much is logged: TRACE, DEBUG, INFO, WARN, ERR or OFF, or its number."""
    if isinstance(level, int) and not isinstance(level, bool):
        named = [name for name in _PUBLIC if _LEVELS[name][0] == level]
        if not named:
            valid = ", ".join(f"{_LEVELS[name][0]} ({name})" for name in _PUBLIC)
            raise ValueError(f"PopTorch has no log level {level}. Valid: {valid}.")
        level = named[0]
    if not isinstance(level, str) or level not in _LEVELS:
        raise ValueError(f"PopTorch has no log level {level!r}. Valid: {', '.join(_PUBLIC)}.")
    logger.setLevel(_LEVELS[level][1])


class _Formatter(logging.Formatter):
    """The level in small letters, as PopTorch writes it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        name = f"[{record.levelname}]"
        return super().formatMessage(record).replace(name, name.lower(), 1)


class _Console(logging.StreamHandler):  # type: ignore[type-arg]  # takes no argument before Python 3.11
    """Writes to what sys.stderr is at the time, which a test or a notebook may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _start() -> None:
    if not logger.handlers:
        console = _Console()
        console.setFormatter(_Formatter("[%(asctime)s] [%(name)s] [%(levelname)s] %(message)s", "%H:%M:%S"))
        logger.addHandler(console)
    setLogLevel(os.environ.get("POPTORCH_LOG_LEVEL", "WARN"))


_start()
