"""What the front end says to a script's own step is what it says to the same step written by hand for the SDK."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import traceback
from pathlib import Path
from textwrap import dedent, indent
from types import ModuleType
from typing import Any

import pytest

from portwright.errors import UserError

sys.path.insert(0, str(Path(__file__).parent))
pytestmark = [
    pytest.mark.vendor,
    pytest.mark.skipif(
        importlib.util.find_spec("cerebras") is None, reason="the Cerebras SDK is not in this environment"
    ),
    pytest.mark.filterwarnings("default"),
]

SCRIPT = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
{init}

    def forward(self, x):
        h = self.lin(x)
{body}


def loss_of(model, x, y):
{loss}


BATCH = torch.randn(4, 8), torch.randint(0, 8, (4,))


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0.0
    for x, y in DataLoader(TensorDataset(*(torch.cat([part] * 4) for part in BATCH)), batch_size=4, num_workers=2):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        total += loss.item()
        loss.backward()
        optimizer.step()
    print(total)


if __name__ == "__main__":
    main()
"""

# What stands in __init__, in forward and in the loss; a refused line ends with "# here".
CASES: dict[str, tuple[str, str, str]] = {
    "plain": ("pass", "return h", "return F.cross_entropy(model(x), y)"),
    "loss_by_arithmetic": (
        "self.out = nn.Linear(8, 8)\nself.out.weight = self.lin.weight",
        "return self.out(torch.relu(h)), h",
        "out, h = model(x)\nmask = torch.zeros_like(out)\nmask[:, :4] = 1\n"
        "loss = -(out * mask).log_softmax(-1).gather(1, y[:, None]).mean()\n"
        "for p in model.parameters():\n    loss = loss + 0.01 * p.pow(2).sum()\nreturn loss + h.abs().mean()",
    ),
    "host_tensor_kept": (
        "self.t = torch.ones(8)",
        "return h * self.t",
        "return F.cross_entropy(model(x), y)",
    ),
    "twice_with_dropout": (
        "self.drop = nn.Dropout(0.1)\nself.norm = nn.LayerNorm(8)",
        "return self.drop(self.norm(h))",
        "return F.cross_entropy(model(x), y) + F.cross_entropy(model(2 * x), y)",
    ),
    "nonzero": (
        "pass",
        "return h + h.nonzero().float().sum()  # here",
        "return F.cross_entropy(model(x), y)",
    ),
    "item": ("pass", "s = h.sum().item()  # here\nreturn h * s", "return F.cross_entropy(model(x), y)"),
    "lstm": (
        "self.rnn = nn.LSTM(8, 8, batch_first=True)",
        "out, _ = self.rnn(h.unsqueeze(1))  # here\nreturn out[:, 0]",
        "return F.cross_entropy(model(x), y)",
    ),
    "gradient_of_conv1d": (
        "self.conv = nn.Conv1d(4, 4, 3, padding=1)",
        "h = self.conv(torch.tanh(h.reshape(4, 4, 2)))  # here\nreturn h.reshape(4, 8)",
        "return F.cross_entropy(model(x), y)",
    ),
    "numpy_kept": (
        "self.t = torch.from_numpy(np.ones(8, dtype='float32'))",
        "return h * self.t  # here",
        "return F.cross_entropy(model(x), y)",
    ),
    "loss_by_boolean_index": ("pass", "return h", "out = model(x)\nreturn (out[y > 2] ** 2).mean()  # here"),
    "loss_by_one_hot": (
        "pass",
        "return h",
        "p = model(x).log_softmax(-1)\nreturn -(F.one_hot(y, 8) * p).sum(-1).mean()  # here",
    ),
}


def write_script(folder: Path, name: str) -> Path:
    init, body, loss = CASES[name]
    path = folder / f"{name}.py"
    text = SCRIPT.format(init=indent(init, " " * 8), body=indent(body, " " * 8), loss=indent(loss, " " * 4))
    path.write_text(text, encoding="utf-8")
    return path


def import_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ask_forked(words: list[str], folder: Path, update: int = 0) -> dict[str, Any]:
    """The answer about a script, from a child of this process, which has the SDK imported already."""
    from front_end import prepare

    from portwright.targets.csx.script_step import answer_about

    prepare()
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            os.chdir(folder)
            answer_about(words, answer, update)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    assert answer.is_file(), (folder / "output.txt").read_text(errors="replace")[-3000:]
    document: dict[str, Any] = json.loads(answer.read_text())
    return document


@pytest.mark.parametrize("name", CASES)
def test_a_script_is_judged_as_the_same_step_by_hand(tmp_path: Path, name: str) -> None:
    from front_end import ask

    path = write_script(tmp_path, name)
    module = import_script(path)
    by_hand = ask(module.Net, module.BATCH, loss_of=lambda net, batch: module.loss_of(net, *batch))
    answer = ask_forked([str(path)], tmp_path)
    assert answer["accepted"] == by_hand.accepted, (answer, by_hand.message)
    if by_hand.accepted:
        assert answer["ops"] == sum(by_hand.ops.values())
        assert answer["cirh_bytes"] > 0
        assert answer["modules"] == ["model"]
        return
    marked = [n for n, line in enumerate(path.read_text().splitlines(), start=1) if line.endswith("# here")]
    assert [answer["line"]] == marked, answer
    assert answer["file"] == str(path)
    said = re.sub(r"^\w+Error: ", "", by_hand.message).split("`")[0].strip()
    assert said[:40] in answer["words"], (by_hand.message, answer["words"])
    wanted = "backward" if name.startswith("gradient") else "forward"
    assert answer["stage"] == wanted


GAN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
D = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.999), weight_decay=0.1)
d = torch.optim.RMSprop(D.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
for (real,) in DataLoader(TensorDataset(torch.randn(16, 8)), batch_size=4):
    d.zero_grad()
    criterion(D(real), torch.ones(4, 1)).backward()
    fake = G(torch.randn(4, 4))
    criterion(D(fake.detach()), torch.zeros(4, 1)).backward()
    nn.utils.clip_grad_norm_(D.parameters(), 1.0)
    d.step()
    g.zero_grad()
    criterion(D(fake), torch.ones(4, 1)).backward()
    g.step()
"""


def test_both_updates_of_a_gan_are_asked_about(tmp_path: Path) -> None:
    (tmp_path / "gan.py").write_text(GAN)
    for update, name in enumerate(("RMSprop", "Adam")):
        answer = ask_forked([str(tmp_path / "gan.py")], tmp_path, update)
        assert (answer["accepted"], answer["optimizer"]) == (True, name), answer
        assert answer["num_optimizers"] == 2


ODD = {
    "by_hand": (
        """
        model = nn.Linear(8, 8)
        for x, y in data:
            F.cross_entropy(model(x), y).backward()
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-0.1)
        """, True, "by hand"),
    "own_optimizer": (
        """
        class Mine(torch.optim.Optimizer):
            def __init__(self, parameters):
                super().__init__(parameters, {"lr": 0.1})
            def step(self):
                pass
        model = nn.Linear(8, 8)
        optimizer = Mine(model.parameters())
        for x, y in data:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """, True, "no Mine"),
    "time_first": (
        """
        model = nn.Linear(8, 8)
        optimizer = torch.optim.Adagrad(model.parameters())
        for i in range(4):
            x, y = torch.randn(5, 2, 8), torch.randint(0, 8, (10,))
            F.cross_entropy(model(x).view(-1, 8), y).backward()
            optimizer.step()
        """, False, "Only uniform batch sizes"),
    "read_number": (
        """
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in data:
            out = model(x)
            F.cross_entropy(out / out.max().item(), y).backward()
            optimizer.step()
        """, False, "_local_scalar_dense"),
}  # fmt: skip
ODD_HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
data = DataLoader(TensorDataset(torch.randn(16, 8), torch.randint(0, 8, (16,))), batch_size=4)
"""


@pytest.mark.parametrize("name", ODD)
def test_odd_loops(tmp_path: Path, name: str) -> None:
    text, accepted, words = ODD[name]
    (tmp_path / "odd.py").write_text(ODD_HEAD + dedent(text))
    answer = ask_forked([str(tmp_path / "odd.py")], tmp_path)
    assert answer.get("accepted") is accepted, answer
    assert words in (" ".join(answer["notes"]) if accepted else answer["words"])


def test_the_whole_way_in_a_process_of_its_own(tmp_path: Path) -> None:
    from portwright.verify.front_end import ask_front_end

    path = write_script(tmp_path, "item")
    verdict = ask_front_end(path.name, folder=tmp_path)
    assert (verdict.target, verdict.accepted, verdict.stage, verdict.sdk) == (
        "csx",
        False,
        "forward",
        "2.10.0",
    )
    assert verdict.words.startswith(f"{path.name}:")
    assert "model, its loss, backward, SGD" in verdict.asked
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".pyc" and p.name != "__pycache__") == [
        path.name
    ]


@pytest.mark.parametrize(
    ("text", "words", "cure"),
    [
        ("import skimage.no_such\n", "imports skimage", "pip install scikit-image torch==2.4.0"),
        ("1 / 0\n", "ZeroDivisionError", "mend it first"),
        ("print('no training')\n", "without an update", "that trains"),
    ],
)
def test_a_script_that_cannot_be_asked_about(tmp_path: Path, text: str, words: str, cure: str) -> None:
    from portwright.verify.front_end import ask_front_end

    (tmp_path / "odd.py").write_text(text)
    with pytest.raises(UserError) as raised:
        ask_front_end("odd.py", folder=tmp_path)
    assert words in raised.value.message
    assert cure in raised.value.cure
