"""Which data `port --style layout` evaluates on: those of the script, or none; never the training data in their place."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from portwright.errors import UserError
from portwright.port.api import PortResult, port

HEAD = """
import torch
from itertools import islice
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

def dataset(n):
    return TensorDataset(torch.ones(n, 4), torch.zeros(n, dtype=torch.long))

train_loader = DataLoader(dataset(64), batch_size=8)
val_loader = DataLoader(dataset(16), batch_size=8)
test_loader = DataLoader(dataset(24), batch_size=8)
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
opt = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.no_grad()
def test(net, loader):
    net.eval()
    right = 0
    for x, y in loader:
        right += (net(x).argmax(1) == y).sum().item()
    return right

def losses(a, b):
    ta = sum(criterion(model(x), y).item() for x, y in a)
    tb = [criterion(model(x), y).item() for x, y in b]
    return ta, tb
"""
TRAIN = """
for epoch in range(3):
    model.train()
    for x, y in train_loader:
        opt.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        opt.step()
"""
CASES: list[tuple[str, str, int | str, list[str]]] = [
    # name, what the script does beside its step, samples of the evaluation data or the error's words, what is said to be left out
    ("none", "", "no evaluation that was found", []),
    ("test", "    print(test(model, val_loader))", 16, []),
    ("both", "    a = test(model, train_loader)\n    b = test(model, test_loader)", 24, ["test(model, train_loader) is left out: run() evaluates on test_loader"]),
    ("val and test", "    test(model, val_loader)\nprint(test(model, test_loader))", 16, ["test(model, test_loader) is left out: run() evaluates on val_loader"]),
    ("training alone", "    print(test(model, train_loader))", 64, []),
    ("comprehensions", "    print(losses(train_loader, val_loader))", 16, ["what losses(train_loader, val_loader) makes of train_loader is left out"]),
    ("one comprehension", "print(sum(criterion(model(x), y) for x, y in test_loader))", 24, []),
    ("enumerate", "    for i, (x, y) in enumerate(val_loader):\n        model(x)", 16, []),
    ("zip", "    for x, i in zip(val_loader, range(2)):\n        model(x[0])", 16, ["evaluates on some batches of val_loader"]),
    ("zip of two", "    for a, b in zip(val_loader, test_loader):\n        model(a[0])", "evaluates on cannot be told", ["model(a[0]) is left out: which loader"]),
    ("islice", "    for x, y in islice(val_loader, 2):\n        model(x)", 16, ["evaluates on some batches of val_loader"]),
    ("break", "    for x, y in val_loader:\n        model(x)\n        break", 16, ["evaluates on some batches of val_loader"]),
    ("next", "    it = iter(val_loader)\n    for _ in range(2):\n        x, y = next(it)\n        model(x)", 16, ["evaluates on some batches of val_loader"]),
    ("one batch of one and all of the other", "x, y = next(iter(test_loader))\nprint(model(x))\ntest(model, val_loader)", 16, ["model(x) is left out: run() evaluates on val_loader"]),
    ("tensors", "    with torch.no_grad():\n        print(criterion(model(torch.ones(5, 4)), torch.zeros(5).long()))", "evaluates on cannot be told", ["is left out: which loader its data come from cannot be told"]),
    ("slices of tensors", "X = torch.ones(5, 4)\nfor i in range(0, 5, 2):\n    model(X[i : i + 2])", "evaluates on cannot be told", ["is left out"]),
    ("tensors beside training data", "test(model, train_loader)\nprint(model(torch.ones(5, 4)))", "evaluates on cannot be told", ["test(model, train_loader) is left out", "model(torch.ones(5, 4)) is left out"]),
    ("split", "    print(test(model, halves[1]))", 12, []),
    ("made in the function", "def check():\n    loader = DataLoader(dataset(20), batch_size=4)\n    for x, y in loader:\n        model(x)\ncheck()", 20, []),
    ("given as it is made", "test(model, DataLoader(dataset(28), batch_size=4))", 28, []),
    ("made after training", "late = DataLoader(dataset(36), batch_size=4)\ntest(model, late)", 36, []),
    ("a dict of loaders", "loaders = {'train': train_loader, 'val': val_loader}\ntest(model, loaders['val'])", 16, []),
    ("loaders in a loop", "for each in [val_loader, test_loader]:\n    test(model, each)", "evaluates on cannot be told", ["test(model, each) is left out: which loader"]),
    ("a way out of training", "    if test(model, val_loader) > 9:\n        break", 16, ["training ends early"]),
    ("names bound anew", "def check(net, loader):\n    net = net.eval()\n    loader = enumerate(loader)\n    for i, (x, y) in loader:\n        net(x)\ncheck(model, val_loader)", 16, []),
    ("a copy of the model", "import copy\nbest = copy.deepcopy(model)\ntest(best, test_loader)", 24, []),
    ("a model loaded", "other = nn.Linear(4, 2)\nother.load_state_dict(model.state_dict())\ntest(other, test_loader)", 24, ["run() has no place for this: other.load"]),
    ("a function of a function", "def main():\n    def inner(n):\n        for x, y in val_loader:\n            model(x)\n    inner(1)\nmain()", 16, []),
    ("a library's function", "from ignite_like import evaluate\nevaluate(model, val_loader)", 16, []),
    ("a class of evaluators", "class Tester:\n    def __init__(self, net, loader):\n        self.net, self.loader = net, loader\n    def go(self):\n        for x, y in self.loader:\n            self.net(x)\nTester(model, test_loader).go()", 24, []),
    ("every few steps", "        if x.sum() > 0:\n            test(model, val_loader)\n            model.train()", 16, []),
    ("the batch once more", "        print((model(x).argmax(1) == y).float().mean())", "no evaluation that was found", []),
    ("map", "print(list(map(model, val_loader)))", 16, []),
    ("arguments with stars", "pair = (model, val_loader)\ndef check(*all):\n    for x, y in val_loader:\n        model(x)\ncheck(*pair)", 16, []),
]  # fmt: skip


def layout(tmp_path: Path, text: str) -> tuple[PortResult, str]:
    script = tmp_path / "train.py"
    script.write_text(text)
    done = port([script], ["csx"], style="layout", out=tmp_path / "out")
    assert done.changed, [f.message for f in done.left]
    return done, (tmp_path / "out" / "data.py").read_text()


def load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The written data.py, as a module."""
    monkeypatch.syspath_prepend(str(folder))
    space: dict[str, Any] = {}
    try:
        exec((folder / "data.py").read_text(), space)
    finally:
        for name in ("utils", "lib", "engine"):
            sys.modules.pop(name, None)
    return space


PARAMS: dict[str, Any] = {"train_input": {}, "eval_input": {}, "model": {}}


@pytest.mark.parametrize(("name", "text", "data", "left"), CASES, ids=[c[0] for c in CASES])
def test_evaluation_data_are_those_of_the_script(
    name: str, text: str, data: int | str, left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = HEAD + (
        "halves = [DataLoader(d, batch_size=4) for d in random_split(dataset(24), [12, 12])]\n"
        if name == "split"
        else ""
    )
    done, _ = layout(tmp_path, head + TRAIN + text + "\n")
    parts = load(tmp_path / "out", monkeypatch)
    if isinstance(data, str):
        with pytest.raises(UserError, match=data):
            parts["get_eval_dataloader"](PARAMS)
    else:
        assert len(parts["get_eval_dataloader"](PARAMS).dataset) == data
    assert len(parts["get_train_dataloader"](PARAMS).dataset) == 64
    told = [f.message for f in done.left if f.code in ("PW701", "PW703")]
    assert len(told) == len(left), told
    for words, message in zip(left, told, strict=True):
        assert words in message


def test_evaluation_that_a_followed_function_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = TRAIN.replace("\n", "\n    ") + "\n    return test(model, test_loader)\n"
    done, _ = layout(tmp_path, f"{HEAD}\ndef main():{body}\nright = main()\n")
    assert len(load(tmp_path / "out", monkeypatch)["get_eval_dataloader"](PARAMS).dataset) == 24
    assert [f.message for f in done.left if f.code in ("PW701", "PW703")] == []


def test_evaluation_in_another_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine.py").write_text(
        "def evaluate(net, loader, device):\n    net.eval()\n    for x, y in loader:\n        net(x.to(device))\n"
    )
    text = "from engine import evaluate\n" + HEAD + TRAIN
    done, _ = layout(
        tmp_path, text + "    evaluate(model, train_loader, 'cpu')\n    evaluate(model, val_loader, 'cpu')\n"
    )
    assert len(load(tmp_path / "out", monkeypatch)["get_eval_dataloader"](PARAMS).dataset) == 16
    assert [f.message for f in done.left if f.code == "PW701"] == [
        "evaluate(model, train_loader, 'cpu') is left out: run() evaluates on val_loader"
    ]


TRAINER = """
class Trainer:
    def __init__(self, net, loader, held_out):
        self.net, self.loader, self.held_out = net, loader, held_out
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def validate(self):
        return sum(criterion(self.net(x), y).item() for x, y in self.held_out)

    def fit(self):
        for epoch in range(2):
            for x, y in self.loader:
                self.opt.zero_grad()
                loss = criterion(self.net(x), y)
                loss.backward()
                self.opt.step()
            print(self.validate())


trainer = Trainer(model, train_loader, test_loader)
trainer.fit()
"""


def test_evaluation_in_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, _ = layout(tmp_path, HEAD + TRAINER)
    assert len(load(tmp_path / "out", monkeypatch)["get_eval_dataloader"](PARAMS).dataset) == 24
    assert not [f.message for f in done.left if f.code == "PW701"]
