"""TensorFlow's own messages in a run: those that a person can act on, in our form."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from portwright.job.logs import Console

# Said by TensorFlow's own code to its authors, or of what run() does on purpose.
_NOT_FOR_USERS = re.compile(r"deprecat|will be removed|Instructions for updating|retracing", re.I)


class _ToConsole(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if _NOT_FOR_USERS.search(message):
            self._console.debug(message)
        else:
            self._console.warning(message)


@contextmanager
def quiet_tensorflow(console: Console) -> Iterator[None]:
    """Sends warnings of TensorFlow's logger to the console, a line each, without those that are for its authors."""
    logger = tf.get_logger()
    handlers, propagates = list(logger.handlers), logger.propagate
    ours = _ToConsole(console)
    logger.handlers[:] = [ours]
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            for package in ("tensorflow", "tf_keras", "keras"):
                warnings.filterwarnings("ignore", module=rf"{package}(\.|$)")
            yield
    finally:
        logger.handlers[:] = handlers
        logger.propagate = propagates
