"""The loss in plain ops is the chunked one, and is taken where a compiler has to see each op."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from portwright.layers import plain_ops as settings
from portwright.layers.plain_ops import plain_ops
from portwright.losses import chunked_cross_entropy


def loss_and_gradients(**options: Any) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 5, 8, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(11, 8, generator=generator, dtype=torch.float64).requires_grad_()
    bias = torch.randn(11, generator=generator, dtype=torch.float64).requires_grad_()
    targets = torch.randint(0, 11, (3, 5), generator=generator)
    targets[1, 2:] = -100
    loss = chunked_cross_entropy(hidden, weight, targets, bias, **options)
    loss.sum().backward()
    return [loss.detach(), *(tensor.grad for tensor in (hidden, weight, bias) if tensor.grad is not None)]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_both_forms_are_one_loss(reduction: str, label_smoothing: float, is_weighted: bool) -> None:
    weights = torch.arange(15).reshape(3, 5).remainder(4) if is_weighted else None
    options = {"reduction": reduction, "label_smoothing": label_smoothing, "weights": weights}
    expected = loss_and_gradients(**options)
    with plain_ops():
        got = loss_and_gradients(**options)
    assert len(got) == len(expected) == 4
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def ops_of_a_loss() -> set[str]:
    names: set[str] = set()

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.add(func.namespace)
            return func(*args, **(kwargs or {}))

    with Watch():
        loss_and_gradients()
    return names


def test_ops_of_our_own_are_left_out_where_asked_and_on_a_vendors_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "portwright" in ops_of_a_loss()
    with plain_ops():
        assert ops_of_a_loss() == {"aten"}
    assert "portwright" in ops_of_a_loss()
    monkeypatch.setattr(settings, "_TORCH_DEVICES", ("cuda",))
    assert ops_of_a_loss() == {"aten"}
