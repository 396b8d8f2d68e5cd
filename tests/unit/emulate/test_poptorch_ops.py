"""The functions of `poptorch` inside of a frozen program and outside of it, against plain torch; each rule of theirs broken.

| rule (user guide, PopTorch ops; or the passes of the sources) | test |
| --- | --- |
| for_loop and cond are for inference | test_loops_and_branches_are_for_inference |
| for_loop's body gives what it takes | test_for_loop_checks |
| cond's branches give the same number of tensors | test_cond_checks |
| CPU ops are for inference, and do not overlap | test_cpu_op_rules |
| MultiConv is not nested, and not empty | test_multi_conv_rules |
| set_overlap_for_input is an input's only use | test_overlap_rules |
| set_overlap_for_output is of an output, returned once | test_overlap_rules |
| overlap needs IO tiles, no pipeline, and all or summed outputs | test_overlap_settings |
| the factor of serializedMatMul divides its dimension | test_serialized_matmul_checks |
| available memory is a proportion | test_available_memory |
| dynamic_slice has a constant size, and its start is a tensor | test_dynamic_slice_checks |
| the size of dynamic_slice is a factor of the dimension (SliceOps.cpp) | test_the_size_of_a_dynamic_slice_is_a_factor |
| attributes of a custom op have one type, and are ASCII | test_custom_op_attributes |
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from portwright.emulate import poptorch
from portwright.emulate.poptorch import _custom
from portwright.emulate.poptorch._points import _search
from portwright.emulate.poptorch._printed import format_tensor


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
    "NameScope": (lambda x: _scoped(x), lambda x: x * 2),
}


def _scoped(x: torch.Tensor) -> torch.Tensor:
    with poptorch.NameScope("mine"):
        return x * 2


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


def test_for_loop() -> None:
    def ours(x: torch.Tensor, y: torch.Tensor) -> Any:
        return poptorch.for_loop(10, lambda a, b: (a * y, b + a), [x, y])

    def plain(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = x, y
        for _ in range(10):
            a, b = a * y, b + a
        return [a, b]

    x, y = torch.tensor([0.5]), torch.tensor([1.1])
    for result in (ours(x, y), infer(ours, x, y)):
        for one, other in zip(result, plain(x, y), strict=True):
            torch.testing.assert_close(one, other)


def test_for_loop_passes_by_value() -> None:
    def ours(x: torch.Tensor) -> Any:
        def body(y: torch.Tensor) -> torch.Tensor:
            y += 1
            return y

        return poptorch.for_loop(3, body, [x])[0], x + 0

    looped, unchanged = infer(ours, torch.zeros(2))
    assert looped.tolist() == [3, 3]
    assert unchanged.tolist() == [0, 0]
    assert poptorch.for_loop(0, lambda y: y + 1, [torch.zeros(1)])[0].tolist() == [0]  # type: ignore[operator, list-item, return-value, arg-type]


@pytest.mark.parametrize(
    ("count", "body", "inputs", "kind", "said"),
    [
        (2, lambda x: x, torch.ones(1), ValueError, "not list"),
        (2, lambda x, y: (x, y), [torch.ones(1), 5], ValueError, "index 1"),
        (torch.tensor(2), lambda x: x, [torch.ones(1)], poptorch.Error, "count"),
        (-1, lambda x: x, [torch.ones(1)], poptorch.Error, "count"),
        (2, lambda x: (x, x), [torch.ones(1)], poptorch.Error, "takes 1 tensors and gives 2"),
        (2, lambda x: x.repeat(2), [torch.ones(1)], poptorch.Error, "Shape and type"),
        (2, lambda x: x.half(), [torch.ones(1)], poptorch.Error, "Shape and type"),
        (2, lambda x: 1.0, [torch.ones(1)], poptorch.Error, "float"),
    ],
)
def test_for_loop_checks(count: Any, body: Any, inputs: Any, kind: Any, said: str) -> None:
    with pytest.raises(kind, match=said):
        poptorch.for_loop(count, body, inputs)


def test_cond_chooses_at_each_run() -> None:
    def ours(condition: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Any:
        nested = poptorch.cond(condition, lambda a: (a + y, a), [x], lambda: (x * y, y), [])
        return [*nested, poptorch.cond(~condition, lambda: x, [], lambda: y, [])[0]]

    model = poptorch.inferenceModel(Function(ours))
    x, y = torch.tensor([2.0]), torch.tensor([5.0])
    for chosen in (True, False, True):
        condition = torch.tensor([chosen])
        expected = [x + y, x, y] if chosen else [x * y, y, x]
        for one, other, outside in zip(model(condition, x, y), expected, ours(condition, x, y), strict=True):
            torch.testing.assert_close(one, other)
            torch.testing.assert_close(outside, other)


@pytest.mark.parametrize(
    ("then_body", "else_body", "said"),
    [
        (lambda: (MATRIX, MATRIX), lambda: MATRIX, "2 and 1 tensors"),
        (lambda: MATRIX, lambda: MATRIX[:2], "as output 0"),
        (lambda: MATRIX, lambda: MATRIX.half(), "as output 0"),
    ],
)
def test_cond_checks(then_body: Any, else_body: Any, said: str) -> None:
    with pytest.raises(poptorch.Error, match=said):
        infer(lambda c: poptorch.cond(c, then_body, [], else_body, []), torch.tensor([True]))
    with pytest.raises(ValueError, match="not list"):
        poptorch.cond(torch.tensor(True), then_body, MATRIX, else_body, [])  # type: ignore[arg-type]
    with pytest.raises(poptorch.Error, match="one element"):
        infer(lambda c: poptorch.cond(c, then_body, [], then_body, []), torch.tensor([True, False]))


@pytest.mark.parametrize("name", ["for_loop", "cond", "CPU"])
def test_loops_and_branches_are_for_inference(name: str) -> None:
    calls = {
        "for_loop": lambda x: poptorch.for_loop(2, lambda t: t * 2, [x])[0],  # type: ignore[operator, list-item, return-value, arg-type]
        "cond": lambda x: poptorch.cond(x[:1, 0] > 0, lambda t: t, [x], lambda t: -t, [x])[0],  # type: ignore[operator]
        "CPU": lambda x: poptorch.CPU(lambda t: t * 2, "double")(x),
    }
    with pytest.raises(poptorch.Error, match="only supported in inference") as caught:
        gradient(calls[name], MATRIX)
    assert "test_poptorch_ops.py:" in str(caught.value)
    assert infer(calls[name], MATRIX).shape == MATRIX.shape


# Functions of the host


def test_cpu_op_runs_at_each_call() -> None:
    seen: list[float] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cpu = poptorch.CPU(self.look, "look")

        def look(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            seen.append(x.sum().item())  # the host may read
            return x * y, x[x > 100] if x.sum() > 100 else x + y

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            product, total = self.cpu(x, y)
            return product * 3, self.cpu(total, y)[1]

    x = torch.ones(3)
    model = poptorch.inferenceModel(Model())
    for value in (2.0, 4.0):
        product, total = model(x, torch.full((3,), value))
        assert product.tolist() == [3 * value] * 3
        assert total.tolist() == [1 + 2 * value] * 3
    assert seen[-2:] == [3.0, 15.0]
    product, _ = Model()(x, x)
    assert product.tolist() == [3.0] * 3


def test_cpu_op_of_a_module_gives_one_tensor() -> None:
    layer = nn.Linear(8, 2)
    cpu = poptorch.CPU(layer, "layer")
    assert not layer.weight.requires_grad
    torch.testing.assert_close(infer(lambda x: cpu(x), MATRIX), layer(MATRIX))
    assert (cpu.in_shapes, cpu.out_shapes) == ([MATRIX.shape], [torch.Size([6, 2])])
    cpu.registerPersistentData()
    assert [tensor.shape for tensor in cpu.outputs] == [torch.Size([6, 2])]


def test_cpu_op_rules() -> None:
    inner = poptorch.CPU(lambda x: x, "inner")
    outer = poptorch.CPU(lambda x: inner(x), "outer")
    with pytest.raises(poptorch.Error, match="must not overlap"):
        infer(lambda x: outer(x), MATRIX)
    with pytest.raises(poptorch.Error, match="argument 0"):
        infer(lambda x: inner(3), MATRIX)
    with pytest.raises(poptorch.Error, match="by name"):
        infer(lambda x: inner(x=x), MATRIX)
    with pytest.raises(poptorch.Error, match=r"must be a torch\.Tensor"):
        infer(lambda x: poptorch.CPU(lambda t: 3, "three")(x), MATRIX)
    with pytest.raises(poptorch.Error, match="function"):
        poptorch.CPU(3, "three")  # type: ignore[arg-type]
    with pytest.raises(poptorch.Error, match="ID"):
        poptorch.CPU(lambda t: t, "")


def test_printing_happens_at_each_run(capfd: pytest.CaptureFixture[str]) -> None:
    model = poptorch.inferenceModel(Function(lambda x: poptorch.ipu_print_tensor(x + 1, "sum") * 2))
    for value in (1.0, 2.0):
        torch.testing.assert_close(model(torch.full((2,), value)), torch.full((2,), 2 * value + 2))
    printed = capfd.readouterr().err
    assert "sum: (2.000, 2.000)" in printed
    assert "sum: (3.000, 3.000)" in printed
    poptorch.ipu_print_tensor(MATRIX)  # outside of a model it is the tensor itself
    assert "(" not in capfd.readouterr().err
    with pytest.raises(poptorch.Error, match="scientific"):
        poptorch.ipu_print_tensor(MATRIX, float_format="hex")
    with pytest.raises(poptorch.Error, match="list"):
        poptorch.ipu_print_tensor([1.0])  # type: ignore[arg-type]


@pytest.mark.parametrize("prints", [True, False])
def test_gradients_are_printed_too(prints: bool, capfd: pytest.CaptureFixture[str]) -> None:
    def ours(x: torch.Tensor) -> torch.Tensor:
        return poptorch.ipu_print_tensor(x, "x", print_gradient=prints) * 3

    torch.testing.assert_close(gradient(ours, torch.ones(2)), torch.full((2,), 3.0))
    printed = capfd.readouterr().err
    assert ("x_gradient: (3.000, 3.000)" in printed) == prints
    assert "x: (1.000, 1.000)" in printed


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("t", 1000, 3, 75, 8, "auto", " ", "{", "}"),
            "t: {\n {2.7182817 3.1415927}\n {1.4142135 1.6180340}\n}",
        ),
        (
            ("t", 1500, 1, 125, 8, "fixed", ";", "(", ")"),
            "t: (\n (2.7182817;3.1415927)\n (1.4142135;1.6180340)\n)",
        ),
        (("", 0, 1, 0, 3, "scientific", ",", "[", "]"), "[\n [2.72e+00,3.14e+00]\n [1.41e+00,1.62e+00]\n]"),
    ],
)
def test_how_tensors_are_printed(arguments: Any, expected: str) -> None:
    tensor = torch.tensor([[2.7182817, 3.1415927], [1.4142135, 1.6180340]])
    assert format_tensor(tensor, *arguments) == expected


def test_long_tensors_are_shortened_and_wrapped() -> None:
    shortened = format_tensor(torch.arange(100), "n", 10, 2, 80, 4, "auto", ", ", "(", ")")
    assert shortened == "n: (0, 1, ..., 98, 99)"
    assert format_tensor(torch.arange(10), "", 0, 2, 10, 4, "auto", ", ", "(", ")").count("\n") >= 2
    assert format_tensor(torch.tensor(float("nan")), "", 10, 2, 80, 4, "fixed", ", ", "(", ")") == "nan"
    assert format_tensor(torch.zeros(0), "", 10, 2, 80, 4, "fixed", ", ", "(", ")") == "()"


def test_custom_op_needs_a_stand_in() -> None:
    def ours(x: torch.Tensor) -> torch.Tensor:
        return poptorch.custom_op(
            (x,), "Cube", "com.acme", 1, example_outputs=(x,), attributes={"scale": 2.0}
        )[0]

    with pytest.raises(poptorch.Error, match=r"com\.acme\.Cube is not emulated") as caught:
        infer(ours, MATRIX)
    assert "_custom.register" in str(caught.value)
    _custom.register("Cube", "com.acme", lambda x, scale: torch.linalg.matrix_norm(x) * 0 + scale * x**3)
    try:
        torch.testing.assert_close(infer(ours, MATRIX), 2 * MATRIX**3)
        torch.testing.assert_close(gradient(ours, MATRIX), 6 * MATRIX**2)
        _custom.register("Cube", "com.acme", lambda x, scale: x[0])
        with pytest.raises(poptorch.Error, match="the model expects"):
            infer(ours, MATRIX)
    finally:
        _custom._stand_ins.clear()


@pytest.mark.parametrize(
    "attributes", [{1: 2}, {"a": {}}, {"a": [1, 1.5]}, {"a": "ö"}, {"ö": 1}, {"a": ["x", "ß"]}, {"a": [[1]]}]
)
def test_custom_op_attributes(attributes: Any) -> None:
    with pytest.raises(ValueError, match="attribute"):
        poptorch.custom_op((MATRIX,), "Cube", "com.acme", 1, (MATRIX,), attributes)


# Convolutions


class Convolutions(nn.Module):
    def __init__(self, kind: str = "side by side", multi: Any = None) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 3, padding=1)
        self.kind, self.multi = kind, multi or poptorch.MultiConv()

    def forward(self, x: torch.Tensor) -> Any:
        with self.multi:
            if self.kind == "nested":
                with poptorch.MultiConv():
                    return self.one(x)
            if self.kind == "empty":
                return x**2
            if self.kind == "chained":
                return self.two(self.one(x).relu())
            return self.one(x) + self.two(x)


def test_multi_conv() -> None:
    x = torch.randn(2, 1, 8, 8)
    multi = (
        poptorch.MultiConv()
        .availableMemoryProportions([0.2, 0.3])
        .partialsTypes(torch.half)
        .enableConvDithering(True)
        .planType(poptorch.MultiConvPlanType.Serial)
        .perConvReservedTiles(4)
        .cycleBackOff(0.5)
    )
    model = Convolutions(multi=multi)
    torch.testing.assert_close(poptorch.inferenceModel(model)(x), model(x))


@pytest.mark.parametrize(
    ("kind", "said"),
    [("nested", "inside of another"), ("empty", "without a convolution"), ("chained", "side by side")],
)
def test_multi_conv_rules(kind: str, said: str) -> None:
    with pytest.raises(poptorch.Error, match=said):
        poptorch.inferenceModel(Convolutions(kind))(torch.randn(2, 1, 8, 8))


def test_multi_conv_checks() -> None:
    multi = poptorch.MultiConv()
    for error, call in (
        (ValueError, lambda: multi.partialsTypes("half")),  # type: ignore[arg-type]
        (ValueError, lambda: multi.enableConvDithering([True, 1])),  # type: ignore[list-item]
        (AssertionError, lambda: multi.planType("parallel")),  # type: ignore[arg-type]
        (AssertionError, lambda: multi.availableMemoryProportions([])),
        (AssertionError, lambda: multi.perConvReservedTiles(0.5)),  # type: ignore[arg-type]
        (AssertionError, lambda: multi.cycleBackOff(1)),
        (AssertionError, lambda: poptorch.NameScope(3)),  # type: ignore[arg-type]
    ):
        with pytest.raises(error):
            call()
    three = Convolutions(multi=poptorch.MultiConv().availableMemoryProportions([0.1, 0.2, 0.3]))
    with pytest.raises(poptorch.Error, match="2 convolutions was given 3"):
        poptorch.inferenceModel(three)(torch.randn(2, 1, 8, 8))


# Copies that overlap with computing

LOOP = poptorch.OverlapMode.OverlapAccumulationLoop


def sharded(tiles: int = 32, mode: Any = None) -> Any:
    options = poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution())
    if tiles:
        options.TensorLocations.numIOTiles(tiles)
    return options if mode is None else options.outputMode(mode)


def test_overlap_computes_the_same() -> None:
    def ours(x: torch.Tensor, pair: Any) -> Any:
        x, pair = poptorch.set_overlap_for_input((x, pair), LOOP)
        return poptorch.set_overlap_for_output({"sum": x + pair[0], "rest": [pair[1] * 2]}, LOOP)

    x = torch.ones(2)
    model = poptorch.inferenceModel(Function(ours), sharded())
    result = model(x, (x * 2, x * 3))
    assert result["sum"].tolist() == [3, 3]
    assert result["rest"][0].tolist() == [6, 6]
    assert ours(x, (x, x))["sum"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: (x + 1, poptorch.set_overlap_for_input(x, LOOP)), "only use"),
        (lambda x: poptorch.set_overlap_for_input(x + 1, LOOP), "not an input"),
        (lambda x: poptorch.set_overlap_for_output(x + 1, LOOP) * 2, "not an output"),
        (lambda x: _twice(x + 1), "returned twice"),
        (lambda x: poptorch.set_overlap_for_input("x", LOOP), "str"),
        (lambda x: poptorch.set_overlap_for_input(x, "loop"), "OverlapMode"),
    ],
)
def test_overlap_rules(function: Any, said: str) -> None:
    with pytest.raises(poptorch.Error, match=said):
        infer(function, torch.ones(2), options=sharded())


def _twice(y: torch.Tensor) -> Any:
    return y, poptorch.set_overlap_for_output(y, LOOP)


def test_overlap_settings() -> None:
    def ours(x: torch.Tensor) -> Any:
        return poptorch.set_overlap_for_input(x, LOOP) + 1

    with pytest.raises(poptorch.Error, match="PipelinedExecution"):
        infer(ours, torch.ones(2))
    with pytest.raises(poptorch.Error, match="numIOTiles"):
        infer(ours, torch.ones(2), options=sharded(tiles=0))
    with pytest.raises(poptorch.Error, match=r"OutputMode\.Final"):
        infer(ours, torch.ones(2), options=sharded(mode=poptorch.OutputMode.Final))
    infer(lambda x: poptorch.set_overlap_for_input(x, poptorch.OverlapMode.NoOverlap) + 1, torch.ones(2))


# Searches


def all_paths(log_probs: torch.Tensor, blank: int) -> dict[tuple[int, ...], float]:
    """The probability of each labelling, from all alignments."""
    steps, kinds = log_probs.shape
    found: dict[tuple[int, ...], float] = {}
    for number in range(kinds**steps):
        path = [number // kinds**step % kinds for step in range(steps)]
        labels = tuple(k for n, k in enumerate(path) if k != blank and (n == 0 or path[n - 1] != k))
        score = math.exp(sum(float(log_probs[n, k]) for n, k in enumerate(path)))
        found[labels] = found.get(labels, 0.0) + score
    return found


@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_decoder_finds_the_likeliest(blank: int) -> None:
    log_probs = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(1)).log_softmax(2)
    lengths = torch.tensor([4, 3])
    for run in (
        poptorch.ctc_beam_search_decoder,
        lambda *a: infer(lambda p, n: poptorch.ctc_beam_search_decoder(p, n, *a[2:]), *a[:2]),
    ):
        scores, sizes, paths = run(log_probs, lengths, blank, 100, 3)
        assert (scores.shape, sizes.shape, paths.shape) == ((2, 3), (2, 3), (2, 3, 4))
        for sequence in range(2):
            best = sorted(
                all_paths(log_probs[: lengths[sequence], sequence], blank).items(), key=lambda i: -i[1]
            )[:3]
            for rank, (labels, score) in enumerate(best):
                assert tuple(paths[sequence, rank, : sizes[sequence, rank]].tolist()) == labels
                assert scores[sequence, rank].exp().item() == pytest.approx(score, rel=1e-4)


def test_ctc_decoder_checks() -> None:
    probs, lengths = torch.randn(4, 2, 3).log_softmax(2), torch.tensor([4, 4])
    for arguments in (
        (None, lengths),
        (probs, [4]),
        (probs[0], lengths),
        (probs, lengths[:1]),
        (probs, lengths, 3),
        (probs, lengths, 0, 1, 2),
    ):
        with pytest.raises(poptorch.Error, match="ctc_beam_search_decoder"):
            poptorch.ctc_beam_search_decoder(*arguments)  # type: ignore[arg-type]
    assert _search([], 0, 5) == [((), 0.0)]


def test_fps_takes_the_farthest() -> None:
    points = torch.tensor([[0.0], [1.0], [10.0], [4.0], [100.0], [101.0]])
    for run in (poptorch.fps, lambda p, *a: infer(lambda x: poptorch.fps(x, *a), p)):
        assert run(points, [0, 4, 6], 0.5).tolist() == [0, 2, 4]
    chosen = poptorch.fps(points, [0, 6], 1.0, True)
    assert sorted(chosen.tolist()) == list(range(6))
    for wrong in (
        ("x", [0, 6]),
        (points, (0, 6)),
        (points, [0]),
        (points, [0, 7]),
        (points, [3, 1]),
        (points, [0, 6], 1),
        (points, [0, 6], 0.0),
        (points, [0, 6], 0.5, 1),
    ):
        with pytest.raises(poptorch.Error, match="fps"):
            poptorch.fps(*wrong)  # type: ignore[arg-type]


def test_nearest_stays_in_its_sample() -> None:
    x = torch.tensor([[0.0, 0.0], [5.0, 5.0], [9.0, 9.0]])
    y = torch.tensor([[1.0, 0.0], [8.0, 8.0]])
    for run in (poptorch.nearest, lambda a, b, *r: infer(lambda p, q: poptorch.nearest(p, q, *r), a, b)):
        assert run(x, y).tolist() == [0, 1, 1]
        assert run(x, y, [0, 0, 1], [0, 1]).tolist() == [0, 0, 1]
    assert poptorch.nearest(x, y, torch.tensor([0, 0, 1]), [0, 1]).tolist() == [0, 0, 1]
    for wrong in (("x", y), (x, "y"), (x, y, (0, 0, 1), [0, 1]), (x, y, [0], [0, 1])):
        with pytest.raises(poptorch.Error, match="nearest"):
            poptorch.nearest(*wrong)  # type: ignore[arg-type]


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
