"""The native Adam and steps of it for tests."""

from __future__ import annotations

import functools
import shutil
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from portwright.runtime.streaming.native.adam import NativeAdam, load_native

USUAL: dict[str, Any] = {
    "lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "decoupled": True, "step": 5,
}  # fmt: skip


@functools.cache
def load() -> NativeAdam:
    """Skips, and is counted, where the machine has no compiler; anything else is a failure."""
    notes: list[str] = []
    native = load_native(notes.append)
    if native is None:
        if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
            pytest.skip("no C compiler")
        raise AssertionError(f"the native library was not loaded: {notes}")
    return native


def bits(tensor: Tensor) -> Tensor:
    return tensor.view({4: torch.int32, 2: torch.int16}[tensor.element_size()])


@dataclass
class State:
    weight: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    half: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        return [t for t in (self.weight, self.exp_avg, self.exp_avg_sq, self.half) if t is not None]


@dataclass
class Case:
    """Inputs of a step; each way of taking it leaves them as they are."""

    n: int
    seed: int = 0
    moments: torch.dtype = torch.float32
    grad_dtype: torch.dtype = torch.float32
    weight: Tensor = field(init=False)
    grad: Tensor = field(init=False)
    exp_avg: Tensor = field(init=False)
    exp_avg_sq: Tensor = field(init=False)

    def __post_init__(self) -> None:
        made = torch.Generator().manual_seed(self.seed)
        self.weight = torch.randn(self.n, generator=made)
        self.grad = torch.randn(self.n, generator=made).to(self.grad_dtype)
        self.exp_avg = (torch.randn(self.n, generator=made) * 0.1).to(self.moments)
        self.exp_avg_sq = (torch.rand(self.n, generator=made) * 0.1).to(self.moments)

    def in_place(self, native: NativeAdam, half: torch.dtype | None = None, **options: Any) -> State:
        w, m, v = self.weight.clone(), self.exp_avg.clone(), self.exp_avg_sq.clone()
        out = None if half is None else torch.full((self.n,), 7.0, dtype=half)
        native.step(
            weight=w, exp_avg=m, exp_avg_sq=v, weight_out=w, exp_avg_out=m, exp_avg_sq_out=v,
            grad=self.grad, half_out=out, **{**USUAL, **options},
        )  # fmt: skip
        return State(w, m, v, out)

    def apart(self, native: NativeAdam, half: torch.dtype | None = None, **options: Any) -> State:
        w, m, v = (torch.full_like(t, 7.0) for t in (self.weight, self.exp_avg, self.exp_avg_sq))
        out = None if half is None else torch.full((self.n,), 7.0, dtype=half)
        native.step(
            weight=self.weight, exp_avg=self.exp_avg, exp_avg_sq=self.exp_avg_sq,
            weight_out=w, exp_avg_out=m, exp_avg_sq_out=v, grad=self.grad, half_out=out, **{**USUAL, **options},
        )  # fmt: skip
        return State(w, m, v, out)

    def by_torch(self, fused: bool = True, **options: Any) -> State:
        o = {**USUAL, **options}
        p = torch.nn.Parameter(self.weight.clone())
        p.grad = self.grad.float().clone()
        kind = torch.optim.AdamW if o["decoupled"] else torch.optim.Adam
        optimizer = kind(
            [p], lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"], weight_decay=o["weight_decay"], fused=fused
        )  # fmt: skip
        optimizer.state[p] = {
            "step": torch.tensor(o["step"] - 1.0),
            "exp_avg": self.exp_avg.float().clone(),
            "exp_avg_sq": self.exp_avg_sq.float().clone(),
        }
        optimizer.step()
        state = optimizer.state[p]
        return State(p.detach(), state["exp_avg"], state["exp_avg_sq"])

    def in_double(self, **options: Any) -> tuple[np.ndarray, ...]:
        o = {**USUAL, **options}
        w, g, m, v = (t.double().numpy() for t in (self.weight, self.grad, self.exp_avg, self.exp_avg_sq))
        g = g * o.get("grad_factor", 1.0)
        if o["decoupled"]:
            w = w * (1 - o["lr"] * o["weight_decay"])
        else:
            g = g + o["weight_decay"] * w
        m = o["beta1"] * m + (1 - o["beta1"]) * g
        v = o["beta2"] * v + (1 - o["beta2"]) * g * g
        mean, spread = m / (1 - o["beta1"] ** o["step"]), v / (1 - o["beta2"] ** o["step"])
        return w - o["lr"] * mean / (np.sqrt(spread) + o["eps"]), m, v
