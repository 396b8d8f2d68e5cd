"""Says at the end how far `match` and the front end agreed, and by which seed the cases were drawn."""

from __future__ import annotations

import sys
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    fidelity = sys.modules.get("vendor.fidelity")
    for line in fidelity.REPORTS if fidelity else ():
        terminalreporter.write_line(line)


# A process can have one backend of the SDK. These ask it from forked children, which inherit none as long as they come first.
_FORK = (
    "test_fidelity.py",
    "test_front_end_of_scripts.py",
    "test_legal_vendor.py",
    "test_seed_003_vendor.py",
)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    items.sort(key=lambda item: item.path.name not in _FORK)
