"""Stands for PopTorch in tests: computes on the CPU, and is strict about what PopTorch forbids.

Weights live on the "device" until copyWeightsToHost; the optimizer's settings are those of the last setOptimizer; shapes
are those of the first call; backward() and step() belong to the executor alone. What was called is counted in the JSON file
that POPTORCH_LOG names.
"""

from __future__ import annotations

import atexit
import json
import os
from collections import Counter
from pathlib import Path

import torch

CALLS: Counter = Counter()
_inside = False
_losses: list = []


def _write() -> None:
    if os.environ.get("POPTORCH_LOG"):
        Path(os.environ["POPTORCH_LOG"]).write_text(json.dumps(CALLS))


atexit.register(_write)


def _forbid(owner: type, name: str) -> None:
    plain = getattr(owner, name)

    def guarded(self, *args, **kwargs):
        if not _inside:
            raise RuntimeError(f"{name}() was called on the host, which PopTorch forbids")
        return plain(self, *args, **kwargs)

    setattr(owner, name, guarded)


class Options:
    pass


class optim:
    SGD, Adam, AdamW, RMSprop = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    assert reduction in ("mean", "sum", "none"), reduction
    assert x.dim() == 0, "a loss is one number"
    _losses.append(x)
    return x


def trainingModel(model, options=None, optimizer=None):
    assert isinstance(model, torch.nn.Module), type(model)
    assert optimizer is not None, "without an optimizer PopTorch trains with SGD at 0.01"
    assert options is None or isinstance(options, Options)
    _forbid(torch.Tensor, "backward")
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
        _forbid(kind, "step")
    return PoplarExecutor(model, True, optimizer)


def inferenceModel(model, options=None):
    assert options is None or isinstance(options, Options)
    return PoplarExecutor(model, False, None)


def _flat(value) -> list:
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in _flat(each)]
    assert isinstance(value, torch.Tensor), (
        f"an input is a {type(value).__name__}, and PopTorch takes tensors"
    )
    assert value.device.type == "cpu", value.device
    return [value]


class PoplarExecutor:
    def __init__(self, model, training, optimizer):
        self._trained = model if isinstance(model, PoplarExecutor) else None
        self._user_model = model._user_model if self._trained else model
        self._training = training
        self._shapes = None
        self._device = {}
        if optimizer is not None:
            mine = {id(p) for p in self._user_model.parameters()}
            given = [p for group in optimizer.param_groups for p in group["params"]]
            assert {id(p) for p in given} <= mine, "the optimizer has parameters that the model does not have"
            self._optimizer = type(optimizer)(given, lr=1.0)
            self.setOptimizer(optimizer)

    def __getattr__(self, name):
        return getattr(self._user_model, name)

    def setOptimizer(self, optimizer):
        CALLS["setOptimizer"] += 1
        assert type(optimizer) is type(self._optimizer)
        for mine, theirs in zip(self._optimizer.param_groups, optimizer.param_groups, strict=True):
            mine.update({k: v for k, v in theirs.items() if k != "params"})

    def _tensors(self):
        return {**dict(self._user_model.named_parameters()), **dict(self._user_model.named_buffers())}

    def copyWeightsToHostIfNeeded(self):
        if self._device:
            self.copyWeightsToHost()

    def copyWeightsToHost(self):
        CALLS["copyWeightsToHost"] += 1
        assert self._device, "nothing is compiled yet"
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                if name in self._device:
                    tensor.copy_(self._device[name])

    def __call__(self, *args, **kwargs):
        global _inside
        assert not kwargs
        leaves = _flat(args)
        shapes = [(tuple(t.shape), t.dtype) for t in leaves]
        self._shapes = self._shapes or shapes
        assert shapes == self._shapes, f"compiled for {self._shapes}, called with {shapes}"
        CALLS["training" if self._training else "inference"] += 1
        weights = self if self._training else self._trained
        host = {name: tensor.detach().clone() for name, tensor in self._tensors().items()}
        if weights is not None and weights._device:
            with torch.no_grad():
                for name, tensor in self._tensors().items():
                    tensor.copy_(weights._device[name])
        _inside = True
        try:
            _losses.clear()
            if self._training:
                assert self._user_model.training
                with torch.enable_grad():
                    result = self._user_model(*args)
                    assert len(_losses) == 1, "a training graph has one identity_loss"
                    self._optimizer.zero_grad()
                    _losses[0].backward()
                    self._optimizer.step()
                self._optimizer.zero_grad()
            else:
                with torch.no_grad():
                    result = self._user_model(*args)
        finally:
            _inside = False
        if self._training:
            self._device = {name: tensor.detach().clone() for name, tensor in self._tensors().items()}
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(host[name])
        return _detached(result)


def _detached(value):
    if isinstance(value, (list, tuple)):
        return type(value)(_detached(each) for each in value)
    return value.detach()
