"""A small model in SambaFlow's hands, for the tests of its emulator."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from portwright.emulate.ledger import LEDGERS
from portwright.emulate.sambaflow import _state, samba
from portwright.emulate.sambaflow.samba import utils

FP32 = {"graphamp_preset": "mp0"}


def start_again() -> None:
    """A process with nothing compiled and nothing parsed."""
    samba.session.__init__()  # type: ignore[misc]
    LEDGERS["sambaflow"].forget_all()
    _state.command = None


class Classifier(nn.Module):
    """The shape of the vendor's own examples: forward(image, label) gives the loss and the logits."""

    def __init__(self, dropout: float = 0.0, hidden: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, hidden), nn.Linear(hidden, 4)
        self.dropout, self.criterion = nn.Dropout(dropout), nn.CrossEntropyLoss()

    def forward(self, image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.last(self.dropout(self.first(image).relu()))
        return self.criterion(logits, label), logits


def sgd(model: nn.Module, **options: Any) -> Any:
    return samba.optim.SGD(model.parameters(), **{"lr": 0.1, **options})


def adamw(model: nn.Module, **options: Any) -> Any:
    return samba.optim.AdamW(model.parameters(), **{"lr": 0.01, **options})


class Case:
    """A converted model beside an untouched copy of it, and the tools to compile, trace and run it."""

    def __init__(
        self,
        folder: Path,
        make: Callable[[], nn.Module] = Classifier,
        optimizer: Callable[[nn.Module], Any] | None = sgd,
        batch: int = 6,
        config: dict[str, Any] | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.folder, self.model = folder, make()
        self.reference = copy.deepcopy(self.model)
        samba.from_torch_model_(self.model)
        self.inputs = self.draw(batch)
        self.optimizer = None if optimizer is None else optimizer(self.model)
        self.config = {**FP32, "output_folder": str(folder), **(config or {})}

    def draw(self, batch: int = 6, seed: int = 1) -> tuple[Any, Any]:
        made = torch.Generator().manual_seed(seed)
        image = torch.randn(batch, 8, generator=made)
        label = torch.randint(4, (batch,), generator=made)
        return (
            samba.from_torch_tensor(image, name="image", batch_dim=0),
            samba.from_torch_tensor(label, name="label", batch_dim=0),
        )

    def compile(self, **options: Any) -> str:
        return samba.session.compile(
            self.model, self.inputs, self.optimizer, name="case", config_dict=self.config, **options
        )

    def trace(self, pef: str | None = None, **options: Any) -> Any:
        pef = self.compile() if pef is None else pef
        return utils.trace_graph(self.model, self.inputs, self.optimizer, pef=pef, **options)

    def run(self, *sections: str, lr: float | None = 0.1, inputs: Any = None, **options: Any) -> Any:
        if lr is not None:
            options.setdefault("hyperparam_dict", {"lr": lr})
        return samba.session.run(
            self.inputs if inputs is None else inputs,
            self.model.output_tensors,
            section_types=list(sections) or None,
            **options,
        )

    def plain(self) -> tuple[Tensor, Tensor]:
        return samba.to_torch(self.inputs[0]), samba.to_torch(self.inputs[1])


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
