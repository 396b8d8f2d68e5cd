"""Names of tensors of a compiled program, for anchorTensor() and getTensorNames()."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from portwright.emulate.poptorch import _utils
from portwright.emulate.poptorch._errors import refuse
from portwright.errors import suggest

GRADIENT = "Gradient___"
UPDATED = "UpdatedVar___"


class ModuleOutputs:
    """What each module returned while the program was traced, as "path/to/module/Class:k", k counting results."""

    def __init__(self, model: torch.nn.Module, scoped: bool) -> None:
        self._model = model
        self._scoped = scoped  # Options.disableModuleNamescope leaves the paths out
        self.tensors: dict[str, torch.Tensor] = {}
        self._counts: dict[str, int] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        handles = [
            module.register_forward_hook(self._hook(name))
            for name, module in self._model.named_modules()
            if name and not isinstance(module, torch.jit.ScriptModule)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str) -> Any:
        def record(module: torch.nn.Module, inputs: Any, result: Any) -> None:
            kind = type(module).__name__
            base = f"{name.replace('.', '/')}/{kind}" if self._scoped else kind
            for tensor in _utils.flattenTensorStructure(result):
                index = self._counts.get(base, 0)
                self._counts[base] = index + 1
                self.tensors[f"{base}:{index}"] = tensor

        return record


def all_names(
    inputs: Iterable[str],
    weights: Iterable[str],
    trained: Iterable[str],
    outputs: Iterable[str],
    training: bool,
) -> list[str]:
    """Every name that can be anchored: inputs, weights, module results, and in training the loss, gradients and updates."""
    trained = list(trained)
    names = [f"input/{name}" for name in inputs] + list(weights) + list(outputs)
    if training:
        names += ["loss", *(GRADIENT + name for name in trained), *(UPDATED + name for name in trained)]
    return names


def check_anchors(wanted: Iterable[str], names: Iterable[str]) -> None:
    known = set(names)
    for name in wanted:
        if name not in known:
            raise refuse(
                f"anchorTensor() names {name!r}, which is no tensor of this model. {suggest(name, known)}"
            )
