"""Groups that a block is given by name and hands on with everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from portwright.port import api

BLOCK = """\
from torch import nn


class Pointwise(nn.Module):
    def __init__(self, width, **kwargs):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 1, **kwargs)


class Net(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.one = Pointwise(8{given})
"""


@pytest.mark.parametrize(
    ("given", "lines"),
    [(", groups=count", [7]), (", groups=2", [7]), (", groups=1", []), ("", []), (", stride=2", [])],
)
def test_groups_that_are_handed_on(tmp_path: Path, given: str, lines: list[int]) -> None:
    path = tmp_path / "model.py"
    path.write_text(BLOCK.format(given=given))
    findings = api.check([path], ["csx"], ["PW321"], use_cache=False).findings
    assert [f.line for f in findings] == lines
