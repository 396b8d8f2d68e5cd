"""What the tests of the models find is written down in results.json, and has to be what stands there.

With PORTWRIGHT_UPDATE_MODELS=1 what they find is written there instead; docs/models.md is made from it by tools/make_models_table.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # zoo.py and results.py, for the tests here and for the tools

import torch
from results import note

Record = Callable[[str, str, Any], None]


@pytest.fixture
def record() -> Record:
    """Called with a model, a check and its outcome."""
    return note


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Sums are then added up in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
