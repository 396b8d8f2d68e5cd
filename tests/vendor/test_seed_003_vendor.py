"""The real front end takes the whole training step of each ported transformer: the script's own loop, up to its loss."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from portwright.discover import find_rules
from portwright.port.apply import make_port
from portwright.port.check import Selection
from portwright.port.finding import Safety

if TYPE_CHECKING:
    from front_end import Question

sys.path.insert(0, str(Path(__file__).parent))
pytestmark = [
    pytest.mark.vendor,
    pytest.mark.skipif(
        importlib.util.find_spec("cerebras") is None, reason="the Cerebras SDK is not in this environment"
    ),
    pytest.mark.filterwarnings("default"),
]

FOLDER = Path(__file__).parents[1] / "fixtures" / "seed_003"
EXAMPLE = Path(__file__).parents[2] / "examples" / "transformer" / "train.py"
SCRIPTS = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
# The subclass is asked with cross-entropy, which is the same on its log_softmax: F.nll_loss is refused by itself.
LOSSES = {"translation": nn.CrossEntropyLoss(ignore_index=1)}


class _Reached(Exception):
    """The loss is there; what the loop does with it is the step's."""


class LossOfLoop(nn.Module):
    """A criterion that ends the script's loop with the first loss."""

    def __init__(self, criterion: nn.Module) -> None:
        super().__init__()
        self.criterion = criterion
        self.loss: Tensor | None = None

    def forward(self, *args: Any) -> Tensor:
        self.loss = self.criterion(*args)
        raise _Reached


def load(path: Path, folder: Path, allow: tuple[Safety, ...] = ("safe",)) -> ModuleType:
    """A script after one port; without anything that may be changed, as it is."""
    selection = Selection(tuple(find_rules().values()), frozenset({"csx"}))
    port = make_port([path], selection, allow)
    copy = folder / path.name
    copy.write_text(port.changed[path].after.text if path in port.changed else path.read_text())
    spec = importlib.util.spec_from_file_location(path.stem, copy)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Compiled:
    """What the SDK compiles is a function; the scripts also look at their model."""

    def __init__(self, model: nn.Module, net: Any) -> None:
        self.model, self.net = model, net

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.net(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def question(name: str, module: ModuleType) -> Question:
    from front_end import Question

    made: list[nn.Module] = []
    if name == "example":
        letters = torch.stack([torch.arange(i, i + 11) for i in range(8)]).int()
        args = SimpleNamespace(seq_len=10, vocab_size=26, log_interval=1000)

        def loop(net: Any, batch: Any, criterion: nn.Module) -> None:
            module.train(net, [batch], criterion, _optimizer(), None, torch.device("cpu"), args, 1)

        def make() -> nn.Module:
            made.append(module.TransformerModel(26, 16, 2, 12, 2, 0.1))
            return made[-1]

        batch = (letters[:, :-1], letters[:, 1:])
        criterion: nn.Module = nn.CrossEntropyLoss()
    else:

        def loop(net: Any, batch: Any, criterion: nn.Module) -> None:
            module.train(net, [batch if len(batch) > 1 else batch[0]], criterion, _optimizer())

        def make() -> nn.Module:
            made.append(module.Net(**module.SIZES))
            return made[-1]

        given = module.batches()[0]
        parts = (given,) if isinstance(given, Tensor) else given
        batch = tuple(t if t.is_floating_point() else t.int() for t in parts)
        criterion = LOSSES.get(name, nn.CrossEntropyLoss())
    return Question(
        make, batch, loss_of=lambda net, given: loss_of_loop(loop, Compiled(made[-1], net), given, criterion)
    )


def _optimizer() -> Any:
    return SimpleNamespace(zero_grad=lambda: None, step=lambda: None)


def loss_of_loop(loop: Any, net: Any, batch: Any, criterion: nn.Module) -> Tensor:
    """Runs the script's own training loop up to its first loss."""
    kept = LossOfLoop(criterion)
    with pytest.raises(_Reached):
        loop(net, batch, kept)
    assert kept.loss is not None
    return kept.loss


def test_every_ported_transformer_is_accepted(tmp_path: Path) -> None:
    from front_end import ask_all

    modules = {name: load(path, tmp_path) for name, path in {"example": EXAMPLE, **SCRIPTS}.items()}
    verdicts = ask_all([question(name, module) for name, module in modules.items()])
    refused = [f"{name}: {v.message}" for name, v in zip(modules, verdicts, strict=True) if not v]
    assert not refused, "\n".join(refused)


def test_the_example_is_refused_as_it_is(tmp_path: Path) -> None:
    from front_end import ask_all

    assert not ask_all([question("example", load(EXAMPLE, tmp_path, allow=()))])[0]
