"""The functions of `poptorch` inside of a frozen program and outside of it, against plain torch; each rule of theirs broken.

| rule (user guide, PopTorch ops; or the passes of the sources) | test |
| --- | --- |
| the factor of serializedMatMul divides its dimension | test_serialized_matmul_checks |
| available memory is a proportion | test_available_memory |
| dynamic_slice has a constant size, and its start is a tensor | test_dynamic_slice_checks |
| the size of dynamic_slice is a factor of the dimension (SliceOps.cpp) | test_the_size_of_a_dynamic_slice_is_a_factor |
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from portwright.emulate import poptorch


class Function(nn.Module):
    """A model of one function, with a weight so that it can be trained."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def infer(function: Any, *inputs: torch.Tensor, options: Any = None) -> Any:
    """What a frozen program computes; traced on other values, so that nothing of the trace is left in it."""
    model = poptorch.inferenceModel(Function(function), options)
    model.compile(*[torch.zeros_like(tensor) for tensor in inputs])
    return model(*inputs)


def gradient(function: Any, x: torch.Tensor) -> torch.Tensor:
    """The gradient of the sum of function(weight), by one step of SGD with rate 1."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(x.clone())

        def forward(self, unused: torch.Tensor) -> Any:
            return poptorch.identity_loss(function(self.x), "sum")

    model = Model()
    training = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    training(torch.zeros(1))
    training.copyWeightsToHost()
    return x - model.x.detach()


def plain_gradient(function: Any, x: torch.Tensor) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    function(leaf).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


MATRIX = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
SERIAL = poptorch.MatMulSerializationMode

SAME = {  # in poptorch, in torch
    "nop": (poptorch.nop, lambda x: x),
    "set_available_memory": (lambda x: poptorch.set_available_memory(x @ x.T, 0.3), lambda x: x @ x.T),
    "recomputationCheckpoint": (lambda x: poptorch.recomputationCheckpoint(x * 2) * 3, lambda x: x * 6),
    "dynamic_slice": (lambda x: poptorch.dynamic_slice(x, 1, torch.tensor([2]), 4, 1), lambda x: x[:, 2:6]),
    "dynamic_slice_step": (
        lambda x: poptorch.dynamic_slice(x, 1, torch.tensor(3), 4, 2),
        lambda x: x[:, 3:7:2],
    ),
    "dynamic_update": (
        lambda x: poptorch.dynamic_update(x, x[:, :2] * 5, 1, torch.tensor([3]), 2),
        lambda x: torch.cat([x[:, :3], x[:, :2] * 5, x[:, 5:]], 1),
    ),
    **{
        f"serializedMatMul_{mode.name}": (
            lambda x, mode=mode: poptorch.serializedMatMul(x, x.T, mode, 2, keep_precision=True),
            lambda x: x @ x.T,
        )
        for mode in SERIAL
    },
}


@pytest.mark.parametrize(("ours", "plain"), SAME.values(), ids=SAME)
def test_same_as_torch_inside_and_outside(ours: Any, plain: Any) -> None:
    torch.testing.assert_close(ours(MATRIX), plain(MATRIX))
    torch.testing.assert_close(infer(ours, MATRIX), plain(MATRIX))
    torch.testing.assert_close(gradient(ours, MATRIX), plain_gradient(plain, MATRIX))
    torch.testing.assert_close(plain_gradient(ours, MATRIX), plain_gradient(plain, MATRIX))


def test_the_start_of_a_slice_may_change_from_run_to_run() -> None:
    model = poptorch.inferenceModel(Function(lambda x, s: poptorch.dynamic_slice(x, 1, s, 4, 1)))
    for start in (0, 2, 4):
        torch.testing.assert_close(model(MATRIX, torch.tensor([start])), MATRIX[:, start : start + 4])
    wrapped = model(MATRIX, torch.tensor([6]))
    torch.testing.assert_close(wrapped, MATRIX[:, [6, 7, 0, 1]])
    update = poptorch.inferenceModel(Function(lambda x, s: poptorch.dynamic_update(x, x[:2], 0, s, 2)))
    for start in (0, 4):
        result = update(MATRIX, torch.tensor([start]))
        torch.testing.assert_close(result[start : start + 2], MATRIX[:2])


@pytest.mark.parametrize(
    "arguments",
    [
        (1.0, 0, torch.tensor(0), 2, 1),
        (MATRIX, "0", torch.tensor(0), 2, 1),
        (MATRIX, 0, 0, 2, 1),
        (MATRIX, 0, torch.tensor(0.5), 2, 1),
        (MATRIX, 0, torch.tensor([0, 1]), 2, 1),
        (MATRIX, 0, torch.tensor(0), torch.tensor(2), 1),
        (MATRIX, 0, torch.tensor(0), 0, 1),
        (MATRIX, 0, torch.tensor(0), 7, 1),
        (MATRIX, 0, torch.tensor(0), 2, 0),
        (MATRIX, 0, torch.tensor(0), 2, 1.5),
        (MATRIX, 2, torch.tensor(0), 2, 1),
    ],
)
def test_dynamic_slice_checks(arguments: Any) -> None:
    with pytest.raises(poptorch.Error, match="dynamic_slice"):
        poptorch.dynamic_slice(*arguments)


def test_the_size_of_a_dynamic_slice_is_a_factor() -> None:
    with pytest.raises(poptorch.Error, match="size 7 along a dimension of 8"):
        infer(lambda x: poptorch.dynamic_slice(x, 1, torch.tensor(1), 7, 1), MATRIX)
    outside = poptorch.dynamic_slice(MATRIX, 1, torch.tensor(1), 7, 1)
    torch.testing.assert_close(outside, MATRIX[:, 1:8])


@pytest.mark.parametrize(
    "arguments",
    [
        (MATRIX, MATRIX[0], 0, torch.tensor(0), 1),
        (MATRIX, MATRIX[:1].half(), 0, torch.tensor(0), 1),
        (MATRIX, MATRIX[:2], 0, torch.tensor(0), 1),
        (MATRIX, [1.0], 0, torch.tensor(0), 1),
        (MATRIX, MATRIX[:1], 0, 3, 1),
    ],
)
def test_dynamic_update_checks(arguments: Any) -> None:
    with pytest.raises(poptorch.Error, match="dynamic_update"):
        poptorch.dynamic_update(*arguments)


def test_serialized_matmul_checks() -> None:
    x = MATRIX
    for wrong in ({"factor": 1.5}, {"keep_precision": 1}, {"mode": "input_channels"}):
        given: Any = {"mode": SERIAL.InputChannels, "factor": 2, **wrong}
        with pytest.raises(AssertionError):
            poptorch.serializedMatMul(x, x.T, **given)
    for mode, length in ((SERIAL.InputChannels, 6), (SERIAL.ReducingDim, 8), (SERIAL.OutputChannels, 6)):
        for factor in (5, 0):
            with pytest.raises(poptorch.Error, match=rf"{mode.name}, which is {length} long, into {factor}"):
                infer(lambda x, mode=mode, f=factor: poptorch.serializedMatMul(x, x.T, mode, f), x)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, "half", None])
def test_available_memory(wrong: Any) -> None:
    with pytest.raises(poptorch.Error, match="proportion"):
        poptorch.set_available_memory(MATRIX, wrong)
    with pytest.raises(poptorch.Error, match="float"):
        poptorch.set_available_memory(1.0, 0.5)  # type: ignore[arg-type]
    assert poptorch.set_available_memory(MATRIX, 1) is MATRIX


def test_checkpoints_keep_their_structure() -> None:
    one, two = MATRIX, MATRIX + 1
    assert poptorch.recomputationCheckpoint(one) is one
    assert poptorch.recomputationCheckpoint(one, two) == (one, two)  # type: ignore[arg-type]
    assert poptorch.recomputationCheckpoint([one, two]) == [one, two]
    assert poptorch.recomputationCheckpoint((one,)) == (one,)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="str"):
        poptorch.recomputationCheckpoint("one")  # type: ignore[arg-type]


# Loops and branches


# Functions of the host


def test_custom_op_needs_a_stand_in() -> None:
    def ours(x: torch.Tensor) -> torch.Tensor:
        return poptorch.custom_op(
            (x,), "Cube", "com.acme", 1, example_outputs=(x,), attributes={"scale": 2.0}
        )[0]

    with pytest.raises(poptorch.Error, match=r"com\.acme\.Cube is not emulated") as caught:
        infer(ours, MATRIX)
    assert "poptorch.ops.register" in str(caught.value)
    poptorch.ops.register_stand_in(
        "Cube", "com.acme", lambda x, scale: torch.linalg.matrix_norm(x) * 0 + scale * x**3
    )
    try:
        torch.testing.assert_close(infer(ours, MATRIX), 2 * MATRIX**3)
        torch.testing.assert_close(gradient(ours, MATRIX), 6 * MATRIX**2)
        poptorch.ops.register_stand_in("Cube", "com.acme", lambda x, scale: x[0])
        with pytest.raises(poptorch.Error, match="the model expects"):
            infer(ours, MATRIX)
    finally:
        poptorch.ops._stand_ins.clear()


# Convolutions


# Copies that overlap with computing

LOOP = poptorch.OverlapMode.OverlapAccumulationLoop


def test_a_weighted_loss_by_hand_is_the_cure_that_works() -> None:
    weight = torch.tensor([1.0, 2.0, 3.0])
    labels = torch.tensor([0, 1, 2, 2])

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        there, of_class = labels.to(x.device), weight.to(x.device)
        each = F.cross_entropy(x, there, reduction="none") * of_class[there]
        return each.sum() / of_class[there].sum()

    x = torch.randn(4, 3)
    expected = plain_gradient(lambda t: F.cross_entropy(t, labels, weight=weight), x)
    torch.testing.assert_close(gradient(by_hand, x), expected)
