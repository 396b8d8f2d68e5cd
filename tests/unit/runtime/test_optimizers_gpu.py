"""What only a GPU can show: its kernels agree with the CPU's, and nothing makes the host wait."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from portwright.job.optimizer import OPTIMIZERS, optimizer_schema
from portwright.runtime.optimizers import (
    clip_gradients,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
)
from portwright.runtime.precision import make_loss_scaler, resolve_precision

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]

FUSED = {"Adam", "AdamW", "SGD"}
# Torch itself reads ASGD's step sizes from the device at each step.
WAITS = {"ASGD"}


def spec(optimizer_type: str, **values: Any) -> Any:
    return optimizer_schema(optimizer_type).model_validate({"learning_rate": 0.01, **values})


def make_net(dtype: torch.dtype, device: str) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3))
    return net.to(dtype=dtype, device=device)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, chosen: Any, first: int, last: int) -> None:
    place = next(net.parameters())
    for step in range(first, last):
        optimizer.zero_grad()
        batch = torch.randn(4, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64).to(
            place
        )
        net(batch).square().mean().backward()
        clip_gradients(net.parameters(), chosen)
        optimizer.step()


def names_of(net: nn.Module) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in net.named_parameters()}


@contextmanager
def no_waiting() -> Iterator[None]:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - {"Muon"}))
def test_a_gpu_trains_as_a_cpu_does(name: str) -> None:
    chosen = spec(name, max_gradient_norm=0.1, weight_decay_rate=0 if name == "Rprop" else 0.1)
    found = []
    for device in ("cpu", "cuda"):
        net = make_net(torch.float64, device)
        train(net, make_optimizer(net, chosen), chosen, 0, 6)
        found.append([parameter.detach().cpu() for parameter in net.parameters()])
    torch.testing.assert_close(*found, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_state_comes_back_to_the_gpu_bit_for_bit(name: str) -> None:
    chosen = spec(name)
    net = make_net(torch.float32, "cuda")
    optimizer = make_optimizer(net, chosen)
    train(net, optimizer, chosen, 0, 3)
    other = copy.deepcopy(net)
    resumed = make_optimizer(other, chosen)
    items = [(label, tensor.cpu().clone()) for label, tensor in optimizer_state(optimizer, names_of(net))]
    load_optimizer_state(resumed, names_of(other), items)
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        for key, value in optimizer.state[mine].items():
            if isinstance(value, Tensor):
                assert (value.device, value.dtype) == (
                    resumed.state[theirs][key].device,
                    resumed.state[theirs][key].dtype,
                )
    train(net, optimizer, chosen, 3, 6)
    train(other, resumed, chosen, 3, 6)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", sorted(FUSED))
def test_fused_kernels_are_taken_on_a_gpu(name: str) -> None:
    assert make_optimizer(make_net(torch.float32, "cuda"), spec(name)).param_groups[0]["fused"]


def test_adagrad_is_fused_where_this_torch_can() -> None:
    net = make_net(torch.float32, "cuda")
    optimizer = make_optimizer(net, spec("Adagrad"))
    train(net, optimizer, spec("Adagrad"), 0, 2)
    try:
        torch.optim.Adagrad([nn.Parameter(torch.ones(2, device="cuda"))], fused=True)
        weight = nn.Parameter(torch.ones(2, device="cuda"))
        probe = torch.optim.Adagrad([weight], fused=True)
        weight.grad = torch.ones_like(weight)
        probe.step()
    except (RuntimeError, NotImplementedError):
        assert not optimizer.param_groups[0]["fused"]
    else:
        assert optimizer.param_groups[0]["fused"]


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - WAITS))
@pytest.mark.parametrize("clipping", [{"max_gradient_norm": 0.1}, {"max_gradient_value": 0.1}], ids=str)
def test_a_step_waits_for_nothing(name: str, clipping: dict[str, float]) -> None:
    chosen = spec(name, weight_decay_rate=0 if name == "Rprop" else 0.1, **clipping)
    net = make_net(torch.float32, "cuda")
    optimizer = make_optimizer(net, chosen)
    train(net, optimizer, chosen, 0, 2)
    net(torch.ones(2, 6, device="cuda")).square().mean().backward()
    with no_waiting():
        clip_gradients(net.parameters(), chosen)
        optimizer.step()


@pytest.mark.parametrize("name", sorted(FUSED))
@pytest.mark.parametrize("factor", ["dynamic", 1024.0])
def test_scaling_waits_for_nothing_where_the_kernel_skips_by_itself(name: str, factor: Any) -> None:
    chosen = spec(name, loss_scaling_factor=factor, max_gradient_norm=0.1, initial_loss_scale=1024.0)
    precision = resolve_precision({"model": {"mixed_precision": True}}, None, "cuda")
    assert precision.name == "fp16"
    assert precision.autocast is not None
    net = make_net(torch.float32, "cuda")
    optimizer, scaler = make_optimizer(net, chosen), make_loss_scaler(chosen, "cuda")
    assert scaler is not None
    good = torch.ones(2, 6, device="cuda")
    for batch, waits in ((good, True), (good, False), (good * float("inf"), False), (good, False)):
        optimizer.zero_grad()
        with precision.autocast():
            loss = net(batch).square().mean()
        if waits:  # the first step makes tensors of host values
            _step(scaler, loss, net, optimizer, chosen)
        else:
            with no_waiting():
                _step(scaler, loss, net, optimizer, chosen)
    assert scaler.num_skipped == 1
    assert scaler.current_scale() == (512.0 if factor == "dynamic" else 1024.0)
    assert all(torch.isfinite(parameter).all() for parameter in net.parameters())


def _step(scaler: Any, loss: Tensor, net: nn.Module, optimizer: torch.optim.Optimizer, chosen: Any) -> None:
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_gradients(net.parameters(), chosen)
    scaler.step(optimizer)
    scaler.update()
