"""What the errors of Cerebras's software are taken for, without that software."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import nn

from portwright.targets.csx.refusal import explain

LINES: Any = SimpleNamespace(
    finder=SimpleNamespace(find_raised=lambda error, boundary: None), boundary=None, current=None
)


def _raised_in(file: str) -> Exception:
    try:
        exec(compile("raise RuntimeError('Only uniform batch sizes.\\nMore.')", file, "exec"), {})
    except RuntimeError as error:
        return error
    raise AssertionError


def test_what_the_vendors_loader_refuses_is_a_refusal_of_the_batch() -> None:
    error = _raised_in("/env/site-packages/cerebras/pytorch/utils/data/utils.py")
    refusal = explain(error, LINES, nn.Linear(1, 1))
    assert refusal is not None
    assert (refusal.phase, refusal.reason, refusal.file) == ("loader", "Only uniform batch sizes.", None)
    assert "first dimension" in refusal.cure


def test_what_a_data_set_raises_in_that_loader_is_its_own() -> None:
    assert explain(_raised_in("/home/me/data.py"), LINES, nn.Linear(1, 1)) is None
