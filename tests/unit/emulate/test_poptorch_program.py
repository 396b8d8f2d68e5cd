"""The frozen program computes what plain torch computes, at each run anew, and leaves everything else alone."""

from __future__ import annotations

import gc
import itertools
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from unit.emulate.program_models import (
    MODELS,
    Scored,
    Step,
    copy_of,
    find_loss,
    make,
    mlp,
    rows,
    run_eagerly,
    scored,
    trace,
    unjudged,
    weights_of,
)

from portwright.emulate.poptorch import poptorch_core
from portwright.emulate.poptorch._program import Program
from portwright.emulate.poptorch._program_trace import trace as trace_program

# torch takes other ways to the same result where nobody looks on: without gradients in encoders and recurrent layers, in
# UResNet by its own choice.
NEAR = {"planes", "planes_transposed"}
NEAR_IN_INFERENCE = {"tied", "letters", "attention", "lstm", "gru", "rnn"}


def assert_same(mine: Any, theirs: Any, *, near: bool = False, what: str = "") -> None:
    assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype), what
    if near:
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4, msg=what)
    else:
        assert torch.equal(mine, theirs), what


def compare(
    model: nn.Module, inputs: list[Tensor], *, training: bool, near: bool = False, steps: int = 3
) -> Program:
    """Holds several runs against plain torch: outputs, gradients, buffers, and what is left of the random numbers."""
    eager = copy_of(model)
    weights = weights_of(model)
    before = {name: tensor.detach().clone() for name, tensor in weights.items()}
    state = torch.get_rng_state()
    program = trace(model, inputs, training=training)
    assert torch.equal(state, torch.get_rng_state()), "a trace draws no numbers"
    for name, tensor in weights.items():
        assert_same(tensor, before[name], what=name)
        assert tensor.grad is None
    for step in range(steps):
        inputs = [_vary(tensor, step) for tensor in inputs]
        held = [tensor.clone() for tensor in inputs]
        torch.manual_seed(step)
        outputs, gradients, _ = run_eagerly(eager, inputs, training=training)
        state = torch.get_rng_state()
        torch.manual_seed(step)
        mine, my_gradients = program.run(weights, inputs)
        assert torch.equal(state, torch.get_rng_state()), "the same numbers drawn"
        assert len(mine) == len(outputs)
        for number, (tensor, other) in enumerate(zip(mine, outputs, strict=True)):
            assert_same(tensor, other, near=near, what=f"output {number} of run {step}")
            assert not tensor.requires_grad
        assert my_gradients.keys() == gradients.keys()
        for name, gradient in gradients.items():
            assert_same(my_gradients[name], gradient, near=near, what=f"gradient of {name} in run {step}")
        for name, tensor in weights_of(eager).items():
            assert_same(weights[name], tensor.detach(), near=near, what=f"{name} after run {step}")
        for tensor, other in zip(inputs, held, strict=True):
            assert_same(tensor, other, what="an input after the run")
    return program


def _vary(tensor: Tensor, step: int) -> Tensor:
    """Other values in the same strides."""
    if not tensor.is_floating_point() or not step:
        return tensor
    varied = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return (tensor * 0.9 + 0.1 * step) if 0 in tensor.stride() else varied.copy_(tensor * 0.9 + 0.1 * step)


@pytest.mark.filterwarnings(
    "ignore:.*torch.cpu.amp.autocast:FutureWarning"
)  # torch 2.4, in its own checkpoint
@pytest.mark.parametrize("name", MODELS)
def test_training_is_that_of_plain_torch(name: str) -> None:
    model, inputs = make(name)
    compare(model, inputs, training=True, near=name in NEAR)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("in_training", [False, True], ids=["eval", "train"])
def test_inference_is_that_of_plain_torch(name: str, in_training: bool) -> None:
    model, inputs = make(name, training=in_training)
    program = compare(model, inputs, training=False, near=name in NEAR | NEAR_IN_INFERENCE)
    assert not any(node.is_backward for node in program.nodes())


@settings(deadline=None, max_examples=25)
@given(
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    kinds=st.lists(
        st.sampled_from(["relu", "tanh", "dropout", "norm", "residual", "nothing"]), min_size=4, max_size=4
    ),
    batch=st.integers(2, 5),
    seed=st.integers(0, 99),
    training=st.booleans(),
)
def test_any_stack_of_layers(
    widths: list[int], kinds: list[str], batch: int, seed: int, training: bool
) -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [6, *widths, 4]
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
            self.norms = nn.ModuleList(nn.BatchNorm1d(b) for b in sizes[1:])

        def forward(self, x: Tensor, y: Tensor) -> Any:
            seen = []
            for layer, norm, kind in zip(self.layers, self.norms, [*kinds, "nothing"], strict=False):
                out = layer(x)
                if kind == "norm":
                    out = norm(out)
                elif kind == "dropout":
                    out = F.dropout(out, 0.5, self.training)
                elif kind == "residual" and out.shape == x.shape:
                    out += x
                elif kind in ("relu", "tanh"):
                    out = getattr(out, kind)()
                seen.append(out)
                x = out
            return seen, F.mse_loss(x, y)

    torch.manual_seed(seed)
    compare(Stack(), [torch.randn(batch, 6), torch.randn(batch, 4)], training=training, steps=2)


def test_python_runs_when_the_model_is_compiled_and_never_again(capsys: pytest.CaptureFixture[str]) -> None:
    calls = []

    def forward(m: nn.Module, x: Tensor, y: Tensor) -> Any:
        calls.append(random.random())
        print("in forward")
        return x * (2 if len(calls) == 1 else 3), scored(m, x, y)

    model, inputs = Step(forward), rows()
    program = trace(model, inputs)
    for _ in range(3):
        (doubled, _), _ = program.run(weights_of(model), inputs)
    assert len(calls) == 1
    assert capsys.readouterr().out.count("in forward") == 1
    assert torch.equal(doubled, inputs[0] * 2)


def test_weights_are_those_that_are_given_to_run() -> None:
    model, inputs = make("mlp")
    program = trace(model.eval(), inputs)
    other = mlp().eval()
    outputs, gradients, _ = run_eagerly(other, inputs)
    mine, my_gradients = program.run(weights_of(other), inputs)
    assert_same(mine[1], outputs[1])
    assert all(torch.equal(my_gradients[name], gradient) for name, gradient in gradients.items())


def test_training_by_hand_goes_down_as_in_plain_torch() -> None:
    model, inputs = make("cnn")
    eager = copy_of(model)
    program, weights = trace(model, inputs), {n: t.detach().clone() for n, t in weights_of(model).items()}
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    losses = []
    for step in range(6):
        torch.manual_seed(step)
        (_, loss), _, _ = run_eagerly(eager, inputs)
        optimizer.step()
        torch.manual_seed(step)
        (_, mine), gradients = program.run(weights, inputs)
        for name, gradient in gradients.items():
            weights[name].sub_(gradient, alpha=0.1)
        losses.append(mine.item())
        assert mine.item() == pytest.approx(loss.item(), rel=1e-6)
    assert losses[-1] < losses[0]


def test_tied_weights_have_one_gradient() -> None:
    model, inputs = make("tied")
    program = trace(model, inputs)
    assert program.tied == {"out.weight": "embedding.weight"}
    _, gradients = program.run(weights_of(model), inputs)
    assert "embedding.weight" in gradients
    assert "out.weight" not in gradients


def test_of_tied_weights_the_trained_name_has_the_gradient() -> None:
    model, inputs = make("tied")
    weights = weights_of(model)

    def call(given: Any, tensors: Any) -> Any:
        return torch.func.functional_call(model, given, tuple(tensors), tie_weights=False)

    with unjudged():
        program = trace_program(
            call, weights, inputs, training=True, find_loss=find_loss, trained=["out.weight"]
        )
    assert list(program.run(weights, inputs)[1]) == ["out.weight"]


def test_written_weights_are_named_and_others_are_not() -> None:
    model, inputs = make("cnn")
    assert trace(model, inputs).written == {
        "body.1.running_mean",
        "body.1.running_var",
        "body.1.num_batches_tracked",
    }
    assert trace(model.eval(), inputs, training=False).written == set()


def test_results_share_no_memory_with_what_is_given() -> None:
    model, inputs = make("aliases")
    weights = weights_of(model)
    program = trace(model, inputs)
    outputs, gradients = program.run(weights, inputs)
    held = [tensor.clone() for tensor in [*outputs, *gradients.values()]]
    with torch.no_grad():
        for tensor in [*weights.values(), *inputs]:
            tensor.add_(1)
    assert all(torch.equal(a, b) for a, b in zip([*outputs, *gradients.values()], held, strict=True))


def test_gradients_share_no_memory_with_each_other() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return (self.a + self.b + x).sum()

    model = Sum()
    program = trace(model, [torch.ones(3)])
    _, gradients = program.run(weights_of(model), [torch.ones(3)])
    gradients["a"].add_(5)
    assert gradients["b"].tolist() == [1, 1, 1]
    assert gradients["a"].is_contiguous()


@pytest.mark.parametrize("failing", [False, True])
def test_a_trace_leaves_the_model_as_it_was(failing: bool) -> None:
    class Host(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 4)
            self.register_buffer("seen", torch.zeros(()))
            self.kept = torch.zeros(3)  # neither a parameter nor a buffer
            self.listed = [nn.Parameter(torch.ones(4))]  # a parameter that the module does not know

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            self.seen.add_(1)
            self.kept.add_(1)
            x.add_(1)
            loss = F.mse_loss(self.linear(x) * self.listed[0].to("ipu"), y) + self.kept.sum().to("ipu")
            if failing:
                raise KeyError("the user's own fault")
            return loss

    model, inputs = Host(), rows()
    held = [tensor.clone() for tensor in inputs]
    if failing:
        with pytest.raises(KeyError, match="the user's own fault"):
            trace(model, inputs)
    else:
        program = trace(model, inputs)
        losses = [program.run(weights_of(model), inputs)[0][0] for _ in range(2)]
        assert model.seen.item() == 2
        assert torch.equal(losses[0], losses[1]), "a constant is the same in every run"
        model.seen.zero_()
    assert model.seen.item() == 0
    assert model.kept.tolist() == [0, 0, 0]
    assert model.listed[0].grad is None
    assert torch.get_rng_state is not None
    assert all(torch.equal(a, b) for a, b in zip(inputs, held, strict=True))


def test_constants_are_those_of_the_trace() -> None:
    table = torch.arange(4.0)
    model, inputs = Step(lambda m, x, y: (m.linear(x) * table.to("ipu"), scored(m, x, y))), rows()
    program = trace(model, inputs)
    (before, _), _ = program.run(weights_of(model), inputs)
    table.zero_()
    (after, _), _ = program.run(weights_of(model), inputs)
    assert torch.equal(before, after)


@pytest.mark.parametrize(
    "around", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16)]
)
def test_modes_of_the_caller_change_nothing(around: Any) -> None:
    model, inputs = make("in_place")
    program = trace(model, inputs)
    expected, gradients = program.run(weights_of(model), inputs)
    with around():
        if not torch.is_autocast_enabled("cpu"):  # whose casts would be the model's
            program = trace(model, [tensor.clone() for tensor in inputs])
        outputs, mine = program.run(weights_of(model), inputs)
    assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))
    assert all(torch.equal(mine[name], gradients[name]) for name in gradients)
    assert not any(tensor.is_inference() for tensor in outputs)


@pytest.mark.parametrize("name", ["cnn", "strided", "in_place", "planes"])
def test_inputs_of_other_strides_are_laid_out_as_compiled(name: str) -> None:
    model, inputs = make(name)
    program = trace(model.eval(), inputs)
    expected, _ = program.run(weights_of(model), inputs)
    moved = [_elsewhere(tensor) for tensor in inputs]
    assert any(a.stride() != b.stride() for a, b in zip(moved, inputs, strict=True))
    outputs, _ = program.run(weights_of(model), moved)
    assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))


def _elsewhere(tensor: Tensor) -> Tensor:
    """The same values, every second element of a larger tensor."""
    larger = (
        torch.zeros(2 * tensor.shape[0] + 1, *tensor.shape[1:], dtype=tensor.dtype)
        .transpose(0, -1)
        .contiguous()
        .transpose(0, -1)
    )
    view = larger[1::2]
    return view.copy_(tensor)


def test_weights_of_other_strides_are_written_back() -> None:
    model, inputs = make("counting")
    program = trace(model, inputs)
    apart = {name: tensor.detach().clone() for name, tensor in weights_of(model).items()}
    apart["mean"] = torch.zeros(12)[::2]
    program.run(apart, inputs)
    program.run(weights_of(model), inputs)
    assert torch.equal(apart["mean"], model.mean)
    assert model.mean.abs().sum() > 0


class _Alive(TorchDispatchMode):
    """Counts the tensors of one size that are alive at the same time."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.numel, self.most, self._seen = numel, 0, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        import weakref

        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.numel() == self.numel and result._base is None:
            self._seen.append(weakref.ref(result))
        self._seen = [ref for ref in self._seen if ref() is not None]
        self.most = max(self.most, len(self._seen))
        return result


def test_values_are_dropped_at_their_last_use() -> None:
    def forward(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        for _ in range(20):
            x = x * 1.5
        return F.mse_loss(m.linear(x), y)

    model, inputs = Step(forward), [torch.randn(97, 6), torch.randn(97, 4)]
    program = trace(model, inputs)
    gc.collect()
    with _Alive(97 * 6) as alive:
        program.run(weights_of(model), inputs)
    assert alive.most <= 2


def test_nothing_of_a_trace_is_kept_alive() -> None:
    import weakref

    refs: list[Any] = []

    def forward(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = m.linear(x)
        refs.append(weakref.ref(out))
        return F.mse_loss(out, y)

    model, inputs = Step(forward), rows()
    program = trace(model, inputs)
    gc.collect()
    assert refs[0]() is None
    assert program.nodes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w, i: i.__setitem__(0, torch.randn(4, 6)), r"input 0 .*\(4, 6\).*\(3, 6\)"),
        (lambda w, i: i.__setitem__(1, i[1].double()), "input 1 .*float64.*float32"),
        (lambda w, i: i.pop(), "input 1 .*missing"),
        (lambda w, i: w.pop("linear.bias"), "weight linear.bias .*missing"),
        (lambda w, i: w.__setitem__("linear.bias", torch.zeros(5)), "weight linear.bias"),
    ],
)
def test_shapes_and_types_are_fixed(change: Any, said: str) -> None:
    model, inputs = Step(scored), rows()
    program, weights = trace(model, inputs), weights_of(model)
    change(weights, inputs)
    with pytest.raises(poptorch_core.Error, match=said):
        program.run(weights, inputs)


def test_ops_without_use_are_left_out_and_random_ones_stay() -> None:
    def forward(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        m.linear(x).exp().sum()
        torch.rand(3)
        x.clone().mul_(2)
        return scored(m, x, y)

    names = [node.name for node in trace(Step(forward), rows()).nodes()]
    assert "aten.exp.default" not in names
    assert "aten.mul_.Tensor" not in names
    assert "aten.rand.default" in names


def test_nodes_say_where_they_come_from() -> None:
    model = Scored(nn.Sequential(nn.Linear(6, 9), nn.Sigmoid(), nn.Linear(9, 4)))
    nodes = trace(model, [torch.randn(3, 6), torch.randn(3, 4)]).nodes()
    first = next(node for node in nodes if node.name == "aten.addmm.default")
    sigmoid = next(node for node in nodes if node.name == "aten.sigmoid.default")
    backward = next(node for node in nodes if node.name == "aten.sigmoid_backward.default")
    loss = next(node for node in nodes if node.name == "aten.mse_loss.default")
    assert first.line.rpartition(":")[0].endswith("program_models.py")
    assert loss.line.rpartition(":")[2] != first.line.rpartition(":")[2]
    assert backward.line == sigmoid.line
    assert backward.is_backward
    assert not sigmoid.is_backward


def test_without_trained_weights_there_are_no_gradients() -> None:
    model, inputs = make("loss_alone")
    model.requires_grad_(False)
    outputs, gradients = trace(model, inputs).run(weights_of(model), inputs)
    assert not gradients
    assert len(outputs) == 1


@pytest.mark.parametrize("name", ["cnn", "lstm"])
def test_two_programs_of_one_model_are_alike(name: str) -> None:
    model, inputs = make(name)
    assert trace(model, inputs).nodes() == trace(model, inputs).nodes()


def test_a_model_of_thousands_of_ops_runs() -> None:
    def forward(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        for _ in range(1500):
            x = x + 0.001
        return scored(m, x, y)

    compare(Step(forward), rows(), training=True, steps=1)
