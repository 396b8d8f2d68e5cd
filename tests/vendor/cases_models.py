"""The reference models, with their own configurations and made-up batches."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from vendor.case import Case

import portwright

FOLDERS = Path(portwright.__file__).parent / "models"


class Whole(nn.Module):
    """A reference model with its loss, called with the tensors of a batch."""

    def __init__(self, user_model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.net = user_model.model
        self._names = names
        self.__dict__["user_model"] = user_model  # not a module: its weights are those of `net`

    def forward(self, *batch: Tensor) -> Tensor:
        data = dict(zip(self._names, batch, strict=True)) if self._names else batch
        loss: Tensor = self.__dict__["user_model"](data)
        return loss


def _load(folder: str, module: str) -> Any:
    """A module of a model folder; its siblings are found while it is imported, as when its run.py runs."""
    path = str(FOLDERS / folder)
    sys.path.insert(0, path)
    before = set(sys.modules)
    try:
        return importlib.import_module(module)
    finally:
        sys.path.remove(path)
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(path):
                del sys.modules[name]  # two folders have a model.py


def _params(folder: str) -> dict[str, Any]:
    """The model's own configuration, with the defaults of its schema."""
    loaded: dict[str, Any] = yaml.safe_load((FOLDERS / folder / "configs" / "params.yaml").read_text())
    schema = _load(folder, "utils").ModelParams
    loaded["model"] = schema(**loaded["model"]).model_dump()
    return loaded


def _fc_mnist() -> nn.Module:
    return Whole(_load("fc_mnist", "model").MNISTModel(_params("fc_mnist")), ())


def _alphabet(variant: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        params = _params("alphabet")
        params["model"]["variant"] = variant
        model = _load("alphabet", "model").AlphabetModel(params)
        return Whole(model, ("input_ids", "target_ids", "attention_mask"))

    return make


def models() -> Iterator[Case]:
    size = _params("fc_mnist")["model"]["input_size"]
    images, labels = torch.rand(8, size), torch.randint(0, 10, (8,))
    yield Case("model fc_mnist", _fc_mnist, (images, labels))
    yield Case("model fc_mnist (eval)", _fc_mnist, (images, labels), train=False)
    letters = torch.randint(0, 26, (8, 10))
    for variant in ("pytorch", "layers", "literal"):
        yield Case(f"model alphabet ({variant})", _alphabet(variant), (letters, letters, torch.ones(8, 10)))
