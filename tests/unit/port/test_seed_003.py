"""Transformers as people write them, before and after one port: the same losses, gradients and weights.

Every script of fixtures/seed_003 has a class Net, its SIZES, batches() and train(model, data, criterion, optimizer).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from portwright.discover import find_rules
from portwright.port.apply import make_port
from portwright.port.check import Selection
from portwright.port.finding import Finding, Safety

FOLDER = Path(__file__).parents[2] / "fixtures" / "seed_003"
EXAMPLE = Path(__file__).parents[3] / "examples" / "transformer" / "train.py"
pytestmark = [  # torch's, about the scripts as they were
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask"),
]
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
# Given the sequence first: their texts are cut into columns, or padded into them, and no batch is turned.
IN_COLUMNS = {"decoder_only", "language_model", "older_tutorial", "subclass", "translation"}
LOSSES = {"subclass": nn.NLLLoss(), "translation": nn.CrossEntropyLoss(ignore_index=1)}


@cache
def ported(path: Path, allow: tuple[Safety, ...] = ("safe",)) -> tuple[str, list[Finding]]:
    """What one port for csx makes of a file, and what it leaves."""
    selection = Selection(tuple(find_rules().values()), frozenset({"csx"}))
    port = make_port([path], selection, allow)
    patch = port.changed.get(path)
    return (patch.after.text if patch else path.read_text()), port.left


def load(name: str, text: str, folder: Path) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _default_dtype() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


def train(module: ModuleType, model: nn.Module, criterion: nn.Module, num_steps: int) -> list[torch.Tensor]:
    torch.set_default_dtype(torch.float64)  # masks are made in the precision of the weights
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses: list[torch.Tensor] = module.train(model, module.batches()[:num_steps], criterion, optimizer)
    torch.set_default_dtype(torch.float32)
    return losses


def make(module: ModuleType) -> nn.Module:
    torch.manual_seed(3)
    model: nn.Module = module.Net(**module.SIZES)
    return model


@pytest.mark.parametrize("name", SCRIPTS)
def test_five_steps_are_the_same(name: str, tmp_path: Path) -> None:
    text, _ = ported(FOLDER / f"{name}.py")
    before = load(f"{name}_before", (FOLDER / f"{name}.py").read_text(), tmp_path)
    after = load(f"{name}_after", text, tmp_path)
    criterion = LOSSES.get(name, nn.CrossEntropyLoss())
    near = {"rtol": 1e-9, "atol": 1e-9}
    for num_steps in (1, 5):  # after one step the gradients of the first are still there
        theirs, ours = make(before).double(), make(after).double()
        ours.load_state_dict(theirs.state_dict())
        expected, got = (train(m, net, criterion, num_steps) for m, net in ((before, theirs), (after, ours)))
        assert len(got) == num_steps
        torch.testing.assert_close(got, expected, **near)
        for name_of, weight in theirs.named_parameters():
            mine = ours.get_parameter(name_of)
            torch.testing.assert_close(mine, weight, **near, msg=name_of)
            assert (mine.grad is None) == (weight.grad is None), name_of
            if weight.grad is not None:
                torch.testing.assert_close(mine.grad, weight.grad, **near, msg=name_of)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_seed_gives_the_same_weights(name: str, tmp_path: Path) -> None:
    text, _ = ported(FOLDER / f"{name}.py")
    theirs = make(load(f"{name}_before", (FOLDER / f"{name}.py").read_text(), tmp_path))
    ours = make(load(f"{name}_after", text, tmp_path))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name_of, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name_of], tensor), name_of


@pytest.mark.parametrize("name", [*SCRIPTS, "example"])
def test_a_second_port_changes_nothing(name: str, tmp_path: Path) -> None:
    text, left = ported(EXAMPLE if name == "example" else FOLDER / f"{name}.py")
    assert {f.code for f in left if f.code in ("PW314", "PW340")} == (
        {"PW314"} if name in IN_COLUMNS else set()
    )
    assert "nn.Transformer" not in text
    again = tmp_path / "again.py"
    again.write_text(text)
    assert ported(again)[0] == text


def test_example_is_the_same(tmp_path: Path) -> None:
    text, _ = ported(EXAMPLE)
    before, after = load("before", EXAMPLE.read_text(), tmp_path), load("after", text, tmp_path)
    args = SimpleNamespace(seq_len=10, vocab_size=26, log_interval=1000)
    results = []
    nets = [m.TransformerModel(26, 16, 2, 12, 2, 0.0).double() for m in (before, after)]
    nets[1].load_state_dict(nets[0].state_dict())
    for module, net in zip((before, after), nets, strict=True):
        data = torch.utils.data.DataLoader(module.AlphabetDataset(40, 10, 26, seed=1), batch_size=8)
        criterion = Recorder()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        torch.set_default_dtype(torch.float64)
        module.train(net, data, criterion, optimizer, scheduler, torch.device("cpu"), args, 1)
        loss, accuracy = module.evaluate(net, data, nn.CrossEntropyLoss(), torch.device("cpu"), args)
        torch.set_default_dtype(torch.float32)
        results.append([*criterion.losses, loss, accuracy])
    assert len(results[0]) == 7
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


class Recorder(nn.CrossEntropyLoss):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def forward(self, *args: Any) -> torch.Tensor:
        loss = super().forward(*args)
        self.losses.append(loss.item())
        return loss
