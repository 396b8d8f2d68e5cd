from __future__ import annotations

import json
from pathlib import Path

import pytest

from portwright.port.api import port
from portwright.port.files import COPY_MARK
from portwright.port.origin import find_origin
from portwright.port.undo import undo
from portwright.verify.blame import blame
from portwright.verify.difference import Difference

SCRIPT = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        x = self.layer(x)



        scores = x.masked_fill(x > 0, -1e9)
        return scores.softmax(-1)


net = Net().cuda()
"""


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    done = port([Path("train.py")], ["csx"], out=Path("ported"))
    assert {"PW307", "PW502"} <= {f.code for f in done.fixed}
    return tmp_path / "ported"


def difference(quantity: str, line: str = "", diagnosis: str = "") -> Difference:
    return Difference(1, quantity, "layer.weight", "They differ.", line=line, diagnosis=diagnosis)  # type: ignore[arg-type]


def test_the_rewrite_nearest_to_the_line_is_to_blame(copy: Path) -> None:
    text = (copy / "train.py").read_text().splitlines()
    masked = next(n for n, line in enumerate(text, 1) if "masked_fill" in line)
    found = blame(difference("loss", f"{copy / 'train.py'}:{masked}"), "ported/train.py", copy.parent)
    assert found.rule == "PW307"
    assert "train.py:15" in found.rule_reason
    moved = next(n for n, line in enumerate(text, 1) if line.startswith("net ="))
    assert (
        blame(difference("loss", f"{copy / 'train.py'}:{moved}"), "ported/train.py", copy.parent).rule
        == "PW502"
    )


def test_without_a_line_the_subject_decides(copy: Path) -> None:
    found = blame(difference("loss"), "ported/train.py", copy.parent)
    assert found.rule == "PW307"
    assert "--bisect makes sure" in found.rule_reason
    assert blame(difference("batch"), "ported/train.py", copy.parent).rule is None


def test_a_port_by_hand_gets_the_rule_about_such_places(tmp_path: Path) -> None:
    (tmp_path / "by_hand.py").write_text(SCRIPT)
    found = blame(difference("gradient", diagnosis="zero-grad"), "by_hand.py", tmp_path)
    assert found.rule == "PW402"
    assert "no rewrite is on record" in found.rule_reason
    assert blame(difference("loss", diagnosis="forward"), "by_hand.py", tmp_path).rule is None


def test_a_mark_of_an_earlier_version_or_a_torn_one_is_no_origin(copy: Path) -> None:
    assert find_origin(copy / "train.py") is not None
    mark = copy / COPY_MARK
    document = json.loads(mark.read_text())
    for content in (
        json.dumps({"files": document["files"]}),
        "{",
        "[]",
        json.dumps({"origin": {"folder": 1}}),
    ):
        mark.write_text(content)
        assert find_origin(copy / "train.py") is None
        assert blame(difference("loss"), "ported/train.py", copy.parent).rule is None


def test_a_port_in_place_has_an_origin_until_it_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    port([Path("train.py")], ["csx"], write=True)
    found = find_origin(tmp_path / "train.py")
    assert found is not None
    assert Path(found[1].saved["train.py"]).read_text() == SCRIPT
    assert blame(difference("loss"), "train.py", tmp_path).rule == "PW307"
    undo([tmp_path / "train.py"])
    assert find_origin(tmp_path / "train.py") is None
