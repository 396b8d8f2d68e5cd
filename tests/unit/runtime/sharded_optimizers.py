"""Run by test_optimizers_sharded.py in two processes: every optimizer on shards against the same on whole tensors."""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from portwright.job.optimizer import OPTIMIZERS, OptimizerParams, optimizer_schema
from portwright.runtime.optimizers import (
    clip_gradients,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
)
from portwright.runtime.precision import make_loss_scaler
from portwright.runtime.shards import DTensor, distribute_tensor

try:
    from torch.distributed.tensor import Shard
except ImportError:  # torch 2.4
    from torch.distributed._tensor import Shard

CASES: list[dict[str, Any]] = [
    *({"optimizer_type": name} for name in OPTIMIZERS if name != "Rprop"),
    {"optimizer_type": "AdamW", "correct_bias": False},
    {"optimizer_type": "SGD", "momentum": 0.9},
    {"optimizer_type": "Lamb", "correct_bias": True},
    {"optimizer_type": "Adafactor", "beta1": 0.9},
]


def make_net(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    # Seven and five rows do not split evenly over two processes, one row leaves a process without any.
    return nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 5), nn.Linear(5, 1)).to(
        dtype
    )


def shard(net: nn.Module, mesh: Any) -> nn.Module:
    for module in net.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(0)])))
    return net


def train(
    net: nn.Module, source: nn.Module, spec: OptimizerParams, mesh: Any, resumes: bool
) -> dict[str, Any]:
    """Trains `source` on whole tensors; `net` gets the same gradients, as shards where its parameters are."""
    optimizer, scaler = make_optimizer(net, spec), make_loss_scaler(spec, "cpu")
    names = {parameter: name for name, parameter in net.named_parameters()}
    norms = []
    for step in range(6):
        if resumes and step == 3:
            saved = [(name, tensor.clone()) for name, tensor in optimizer_state(optimizer, names)]
            optimizer = make_optimizer(net, spec)
            load_optimizer_state(optimizer, names, saved)
        batch = torch.randn(4, 6, generator=torch.Generator().manual_seed(step)).to(
            next(source.parameters()).dtype
        )
        values = [
            parameter.full_tensor() if isinstance(parameter, DTensor) else parameter for parameter in names
        ]
        for parameter, value in zip(source.parameters(), values, strict=True):
            parameter.data.copy_(value.detach())
        source.zero_grad()
        loss = source(batch).square().mean()
        (loss if scaler is None else scaler.scale(loss)).backward()
        for parameter, from_source in zip(names, source.parameters(), strict=True):
            grad = from_source.grad
            assert grad is not None
            parameter.grad = (
                distribute_tensor(grad, mesh, [Shard(0)]) if isinstance(parameter, DTensor) else grad.clone()
            )
        if scaler is not None:
            scaler.unscale_(optimizer)
        norm = clip_gradients(names, spec)
        assert norm is not None
        norms.append(norm.item())
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    state = {name: tensor.double() for name, tensor in optimizer_state(optimizer, names)}
    for parameter, name in names.items():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        state[name] = whole.detach().double()
    state["norms"] = torch.tensor(norms, dtype=torch.float64)
    return state


def compare(case: dict[str, Any], mesh: Any) -> float:
    spec = optimizer_schema(case["optimizer_type"]).model_validate(
        {"learning_rate": 0.01, "max_gradient_norm": 0.1, "weight_decay_rate": 0.1, **case}
    )
    net = make_net(torch.float64)
    whole = train(copy.deepcopy(net), copy.deepcopy(net), spec, mesh, resumes=False)
    parts = train(shard(copy.deepcopy(net), mesh), copy.deepcopy(net), spec, mesh, resumes=True)
    assert whole.keys() == parts.keys(), (whole.keys(), parts.keys())
    return max(float((whole[name] - parts[name]).abs().max()) for name in whole)


def overflow_is_agreed(mesh: Any) -> list[float]:
    """One process alone sees an infinite gradient; both must skip."""
    spec = optimizer_schema("SGD").model_validate({"learning_rate": 0.1, "loss_scaling_factor": "dynamic"})
    net = shard(nn.Linear(2, 2, bias=False), mesh)
    optimizer, scaler = make_optimizer(net, spec), make_loss_scaler(spec, "cpu")
    assert scaler is not None
    before = net.weight.full_tensor().clone()
    scaler.scale(torch.zeros(()))
    net.weight.grad = distribute_tensor(torch.tensor([[1.0, 1.0], [float("inf"), 1.0]]), mesh, [Shard(0)])
    scaler.step(optimizer)
    scaler.update()
    unchanged = float(torch.equal(before, net.weight.full_tensor()))
    return [unchanged, float(scaler.num_skipped), scaler.current_scale()]


def main() -> None:
    rank, store, out = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    cases = [*CASES, *({**case, "loss_scaling_factor": "dynamic"} for case in CASES[:4])]
    found = {json.dumps(case): compare(case, mesh) for case in cases}
    result = {"differences": found, "overflow": overflow_is_agreed(mesh)}
    out.with_suffix(f".{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    # Taking gloo's groups of a mesh down aborts now and then in torch 2.13; the result is already written.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
