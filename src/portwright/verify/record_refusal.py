"""Ends a recording that cannot be made, past whatever the script would catch."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

MARK = "CannotRecord: "  # `launch` finds the reason behind it


def refuse(message: str, cure: str) -> NoReturn:
    sys.stdout.flush()
    print(f"{MARK}{message} | {cure}", file=sys.stderr, flush=True)
    os._exit(3)
