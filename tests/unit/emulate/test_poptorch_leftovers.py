"""What the PopTorch emulator does beside the large rules: settings, products and looks that scripts rely on."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from portwright.emulate import poptorch
from portwright.emulate.poptorch._partials import PRODUCTS_A_ROUND, choose_target

aten = torch.ops.aten
HALF = torch.float16


# Half partials: many groups at once give what one after the other gives


def one_by_one(a: Tensor, b: Tensor, total: Tensor | None = None) -> Tensor:
    """a @ b by its definition: a running sum in half, 16 products at a time."""
    total = torch.zeros(*a.shape[:-1], b.shape[-1]) if total is None else total
    for start in range(0, a.shape[-1], PRODUCTS_A_ROUND):
        group = slice(start, start + PRODUCTS_A_ROUND)
        total = (total + a[..., group].float() @ b[..., group, :].float()).half().float()
    return total


@pytest.mark.parametrize(
    "shape",
    [(3, 7, 2), (5, 1000, 4), (1, 16, 1), (2, 64, 3), (40, 333, 50), (600, 70, 500), (3, 0, 2), (0, 40, 2)],
)
def test_matrix_products_are_those_of_the_definition(shape: tuple[int, int, int]) -> None:
    rows, length, columns = shape
    torch.manual_seed(length)
    a, b = torch.randn(rows, length).half() * 3, torch.randn(length, columns).half()
    expected = one_by_one(a, b).half()
    assert torch.equal(choose_target(aten.mm.default, HALF)(a, b), expected)
    batches = choose_target(aten.bmm.default, HALF)(torch.stack([a, -a]), torch.stack([b, b]))
    assert torch.equal(batches, torch.stack([expected, -expected]))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("size", "stride", "padding"), [(21, 1, 1), (40, 2, 0), (9, 3, 2)])
def test_weight_gradients_of_convolutions_are_those_of_the_definition(
    groups: int, size: int, stride: int, padding: int
) -> None:
    torch.manual_seed(size)
    x, weight = torch.randn(3, 4, size, size).half(), torch.randn(6, 4 // groups, 3, 3).half()
    gradient = torch.randn_like(
        nn.functional.conv2d(x.float(), weight.float(), None, stride, padding, 1, groups)
    ).half()
    given = (gradient, x, weight, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups)
    found = choose_target(aten.convolution_backward.default, HALF)(*given, [False, True, False])[1]
    padded = nn.functional.pad(x, [padding] * 4)
    num = gradient.shape[-1]
    expected = torch.empty_like(weight)
    for i, j in itertools.product(range(3), range(3)):
        seen = padded[..., i : i + (num - 1) * stride + 1 : stride, j : j + (num - 1) * stride + 1 : stride]
        for group in range(groups):
            sent = gradient.chunk(groups, 1)[group].transpose(0, 1).flatten(1)
            received = seen.chunk(groups, 1)[group].transpose(0, 1).flatten(1)
            expected.chunk(groups, 0)[group][:, :, i, j] = one_by_one(sent, received.T).half()
    assert torch.equal(found, expected)


# Weights inside of forward()


class Asking(nn.Module):
    """Looks at its weights in the ways that models do."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.scales = nn.ParameterList([nn.Parameter(torch.full((4,), 1.0 + k)) for k in range(2)])
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("shift", torch.zeros(4))
        self.seen: dict[str, Any] = {}

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.get_parameter("first.weight")
        self.seen.update(
            parameters=all(isinstance(p, nn.Parameter) for p in self.parameters()),
            number=len(list(self.parameters())),
            buffer=isinstance(self.get_buffer("shift"), nn.Parameter),
            trained=[name for name, p in self.named_parameters() if p.requires_grad],
        )
        out = x @ weight.t() + self.first.bias
        for scale in self.scales:
            out = out * scale
        out = out * self.frozen + self.shift
        return out, poptorch.identity_loss(out**2, "mean")


def test_weights_are_parameters_inside_of_forward() -> None:
    torch.manual_seed(0)
    model, x = Asking(), torch.randn(3, 4)
    plain = copy.deepcopy(model)
    result = plain.first(x) * plain.scales[0] * plain.scales[1] * plain.frozen
    (result**2).mean().backward()
    trainer = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    trainer(x)
    assert model.seen["parameters"]
    assert model.seen["number"] == 5
    assert not model.seen["buffer"]
    assert model.seen["trained"] == ["first.weight", "first.bias", "scales.0", "scales.1"]
    trainer.copyWeightsToHost()
    for name, parameter in plain.named_parameters():
        step = 0 if parameter.grad is None else 0.1 * parameter.grad
        torch.testing.assert_close(
            model.get_parameter(name), nn.Parameter(parameter - step), atol=1e-6, rtol=1e-6
        )
