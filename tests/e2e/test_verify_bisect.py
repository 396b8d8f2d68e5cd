"""A wrong rule among good ones: verify sees that the port differs, and --bisect finds the rule and its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from portwright import discover
from portwright.errors import UserError
from portwright.port.api import port
from portwright.port.finding import Finding
from portwright.port.origin import find_origin
from portwright.port.rule import File, Rule
from portwright.verify.api import verify

pytestmark = pytest.mark.usefixtures("warm_recorder")

SCRIPT = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

generator = torch.Generator().manual_seed(0)
data = TensorDataset(torch.randn(64, 5, generator=generator), torch.randn(64, 3, generator=generator))
loader = DataLoader(data, batch_size=8, pin_memory=True)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(5, 7)
        self.two = nn.Linear(7, 3)

    def forward(self, x):
        x = torch.tanh(self.one(x))
        return torch.tanh(self.two(x)).transpose(0, 1).contiguous().view(3, -1).transpose(0, 1)


net = Net().to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = (net(x.to(device)) - y.to(device)).pow(2).mean()
    loss.backward()
    optimizer.step()
"""


class WrongRule(Rule):
    """Takes a tanh for a sigmoid, which is right nowhere; harmless on `self.one`, where it leaves the code as it is."""

    code, name, targets, safety = "PW399", "wrong-activation", ("csx",), "safe"
    words, cure = ("tanh",), "Write nothing of the kind."

    def find(self, file: File) -> Iterator[Finding]:
        for call in file.calls("torch.tanh"):
            argument = file.segment(call.args[0])
            same = f"torch.sinh({argument}) / torch.cosh({argument})"
            wrong = f"torch.sigmoid({argument})"
            yield self.report(
                file, call, "a tanh", [file.replace(call, same if "one" in argument else wrong)]
            )


@pytest.fixture
def wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = dict(sorted({**discover.find_rules(), "PW399": WrongRule()}.items()))
    monkeypatch.setattr(discover, "find_rules", lambda: rules)
    for module in ("portwright.port.config", "portwright.verify.bisect"):
        monkeypatch.setattr(f"{module}.find_rules", lambda: rules)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.usefixtures("wrong_rule")
def test_bisect_finds_the_rule_and_the_line(project: Path) -> None:
    done = port([Path("train.py")], ["csx"], out=Path("ported"))
    assert len({f.code for f in done.fixed}) > 2, "good rules have to be among them"
    proof = verify("train.py", "ported/train.py", steps=4, bisect=True)
    line = next(n for n, text in enumerate(SCRIPT.splitlines(), 1) if "tanh(self.two" in text)
    assert proof.bisected is not None
    assert (proof.bisected["rule"], proof.bisected["file"], proof.bisected["line"]) == (
        "PW399",
        "train.py",
        line,
    )
    found = proof.first_difference
    assert found is not None
    assert (found.step, found.rule) == (1, "PW399")
    assert proof.as_dict()["first_difference"]["rule"] == "PW399"


@pytest.mark.usefixtures("wrong_rule")
def test_bisect_after_a_port_in_place_reads_the_undo_store(project: Path) -> None:
    (project / "original.py").write_text(SCRIPT)
    port([Path("train.py")], ["csx"], write=True)
    found = find_origin(project / "train.py")
    assert found is not None
    assert set(found[1].saved) == {"train.py"}
    proof = verify("original.py", "train.py", steps=4, bisect=True)
    assert proof.bisected is not None
    assert proof.bisected["rule"] == "PW399"
    assert "sigmoid" in (project / "train.py").read_text(), "the port itself stays as it is"


def test_bisect_of_what_no_port_wrote_says_so(project: Path) -> None:
    (project / "other.py").write_text(SCRIPT.replace("lr=0.1", "lr=0.2"))
    with pytest.raises(UserError, match="not a port"):
        verify("train.py", "other.py", steps=2, bisect=True)
