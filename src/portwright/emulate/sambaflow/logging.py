"""sambaflow.logging: the vendor's logger; `log_limit` tells a message so often and no more."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partialmethod
from typing import Any


class SambaLogger:
    """Python's logger "sambaflow" with a limit on repeated messages."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("sambaflow")
        self._told: Counter[str] = Counter()

    def _log(self, level: int, message: str, *args: Any, log_limit: int | None = None) -> None:
        self._told[message] += 1
        if log_limit is None or self._told[message] <= log_limit:
            self._logger.log(level, message, *args)

    debug, info = partialmethod(_log, logging.DEBUG), partialmethod(_log, logging.INFO)
    warning, error = partialmethod(_log, logging.WARNING), partialmethod(_log, logging.ERROR)

    def forget(self) -> None:
        """Tells everything again: for a new session."""
        self._told.clear()


samba_logger = SambaLogger()
