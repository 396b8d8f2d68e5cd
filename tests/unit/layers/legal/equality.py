"""Equal in values and in every gradient: the one question that all legal forms answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

IS_OLD = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 5)
"""The vendor's torch, which lacks the backward of channel_shuffle."""
TOLERANCE = {torch.float64: (1e-9, 1e-10), torch.float32: (2e-4, 2e-5)}


def assert_equal_calls(
    theirs: Callable[..., Any],
    ours: Callable[..., Any],
    *inputs: Tensor,
    rtol: float | None = None,
    differentiable: bool = True,
) -> None:
    """Both get the same inputs; floating-point ones get a gradient, which depends on every value that comes out."""
    results = [_run(function, inputs, differentiable) for function in (theirs, ours)]
    _compare(results[0], results[1], rtol)


def assert_equal_modules(
    theirs: nn.Module, ours: nn.Module, *inputs: Any, rtol: float | None = None, seed: int = 0
) -> None:
    """The same parameters in both, the same inputs: values, and gradients of inputs and parameters."""
    ours.load_state_dict(theirs.state_dict(), strict=True)
    assert [n for n, _ in theirs.named_parameters()] == [n for n, _ in ours.named_parameters()]
    results = []
    for module in (theirs, ours):
        torch.manual_seed(seed)
        outputs, gradients = _run(module, inputs, True)
        results.append((outputs, gradients + [p.grad for p in module.parameters()]))
        module.zero_grad()
    _compare(results[0], results[1], rtol)
    for (name, buffer), (_, other) in zip(theirs.named_buffers(), ours.named_buffers(), strict=True):
        torch.testing.assert_close(other, buffer, msg=lambda m, name=name: f"{name}: {m}")


def _run(
    function: Callable[..., Any], inputs: Sequence[Any], differentiable: bool
) -> tuple[list[Tensor], list[Any]]:
    fresh = [_fresh(x, differentiable) for x in inputs]
    outputs = [leaf for leaf in tree_leaves(function(*fresh)) if isinstance(leaf, Tensor)]
    if differentiable:
        generator = torch.Generator().manual_seed(3)
        total: Any = 0.0
        for leaf in outputs:
            if leaf.is_floating_point():
                weight = torch.rand(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.dtype)
                total = total + (leaf * leaf * weight + leaf * weight).sum()
        total.backward()
    gradients = [x.grad for x in tree_leaves(fresh) if isinstance(x, Tensor) and x.requires_grad]
    return outputs, gradients


def _fresh(value: Any, differentiable: bool) -> Any:
    if isinstance(value, tuple):
        return tuple(_fresh(part, differentiable) for part in value)
    if not isinstance(value, Tensor):
        return value
    copy = value.detach().clone()
    return copy.requires_grad_(differentiable and copy.is_floating_point())


def _compare(theirs: Any, ours: Any, rtol: float | None) -> None:
    for kind, expected, received in zip(("output", "gradient"), theirs, ours, strict=True):
        assert len(expected) == len(received)
        for place, (a, b) in enumerate(zip(expected, received, strict=True)):
            where = f"{kind} {place}"
            if a is None or b is None:
                both = [torch.zeros(()) if x is None else x for x in (a, b)]
                assert all((x == 0).all() for x in both), f"{where}: one has no gradient"
                continue
            assert a.dtype == b.dtype, where
            relative, absolute = TOLERANCE.get(a.dtype, (0.0, 0.0))
            if rtol is not None and a.is_floating_point():
                relative, absolute = rtol, rtol
            torch.testing.assert_close(
                b, a, rtol=relative, atol=absolute, equal_nan=True, msg=lambda m, where=where: f"{where}: {m}"
            )


def values(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Numbers without ties, in a fixed order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
