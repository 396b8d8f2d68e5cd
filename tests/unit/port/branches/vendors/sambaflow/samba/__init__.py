"""Stands for SambaFlow in tests: computes on the CPU, and is strict about names, shapes, sections and where weights are."""

from __future__ import annotations

import atexit
import json
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import torch

CALLS: Counter = Counter()


def _write() -> None:
    if os.environ.get("SAMBA_LOG"):
        Path(os.environ["SAMBA_LOG"]).write_text(json.dumps(CALLS))


atexit.register(_write)


class SambaTensor:
    def __init__(self, tensor, name):
        assert isinstance(tensor, torch.Tensor), f"a {type(tensor).__name__} is no tensor"
        self.tensor, self.name = tensor, name

    @property
    def described(self):
        return (self.name, tuple(self.tensor.shape), self.tensor.dtype)


def from_torch_tensor(tensor, name, batch_dim):
    assert batch_dim == 0
    return SambaTensor(tensor, name)


def to_torch(value):
    return value.tensor if isinstance(value, SambaTensor) else value


def from_torch_model_(model):
    model.output_tensors = None
    CALLS["from_torch_model_"] += 1


class Session:
    def __init__(self):
        self.model = None

    def compile(self, model, inputs, optimizer, name, app_dir, config_dict, pef_metadata):
        CALLS["compile"] += 1
        assert Path(app_dir).is_dir()

    def trace(self, model, inputs, optimizer):
        CALLS["trace"] += 1
        assert hasattr(model, "output_tensors"), "from_torch_model_ was not called"
        rng = torch.get_rng_state()
        buffers = {n: b.clone() for n, b in model.named_buffers()}
        with torch.no_grad():
            outputs = model(*(i.tensor for i in inputs))
            for n, b in model.named_buffers():
                b.copy_(buffers[n])
        torch.set_rng_state(rng)
        assert outputs[0].dim() == 0, "the loss comes first"
        model.output_tensors = list(outputs)
        self.model, self.optimizer, self.inputs = model, optimizer, [i.described for i in inputs]
        self.device = {n: t.detach().clone() for n, t in self._tensors().items()}

    def _tensors(self):
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    def run(self, input_tensors, output_tensors, hyperparam_dict, section_types):
        CALLS["run"] += 1
        assert section_types == ["fwd", "bckwd", "opt"]
        assert output_tensors is self.model.output_tensors
        assert [i.described for i in input_tensors] == self.inputs
        host = {n: t.detach().clone() for n, t in self._tensors().items()}
        with torch.no_grad():
            for n, t in self._tensors().items():
                t.copy_(self.device[n])
        outputs = self.model(*(i.tensor for i in input_tensors))
        for group in self.optimizer.param_groups:
            group.update(hyperparam_dict)
        self.optimizer.zero_grad()
        outputs[0].backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            self.device = {n: t.detach().clone() for n, t in self._tensors().items()}
            for n, t in self._tensors().items():
                t.copy_(host[n])
        return [SambaTensor(o.detach(), "output") for o in outputs]

    def to_cpu(self, model):
        CALLS["to_cpu"] += 1
        with torch.no_grad():
            for n, t in self._tensors().items():
                t.copy_(self.device[n])


session = Session()
optim = SimpleNamespace(SGD=torch.optim.SGD, AdamW=torch.optim.AdamW)
