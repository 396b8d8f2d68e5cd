"""Ends a process that cannot be recorded, in a way that the script cannot catch."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

MARK = "CannotRecord: "  # `launch` reads the reason after it


def refuse(message: str, cure: str) -> NoReturn:
    sys.stdout.flush()
    print(f"{MARK}{message} | {cure}", file=sys.stderr, flush=True)
    os._exit(3)
