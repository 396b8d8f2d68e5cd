"""Says at the end how far `match` and the front end agreed, and by which seed the cases were drawn."""

from __future__ import annotations

import sys
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    fidelity = sys.modules.get("vendor.fidelity")
    for line in fidelity.REPORTS if fidelity else ():
        terminalreporter.write_line(line)
