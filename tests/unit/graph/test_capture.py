"""A captured step holds what a real one does: ops, values, aliasing, modules, lines."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import _len_torch_function_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from portwright import PyTorchBaseModel
from portwright.errors import UserError
from portwright.graph.capturing.capture import capture
from portwright.graph.graph import Graph, Node, Ref, Value
from portwright.graph.inputs import TensorSpec
from portwright.losses import chunked_cross_entropy

HERE = Path(__file__)


def line_of(mark: str) -> int:
    """The line of this file that ends with a comment."""
    lines = HERE.read_text().splitlines()
    (found,) = [number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}")]
    return found


def nodes_of(graph: Graph, op: str, phase: str = "") -> list[Node]:
    return [node for node in graph.nodes if node.op == op and phase in ("", node.phase)]


def value(graph: Graph, name: str) -> Value:
    (found,) = [v for v in graph.values if v.name == name]
    return found


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.rest = nn.Sequential(nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
        self.register_buffer("scale", torch.ones(3))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        hidden = self.first(images)  # classifier first
        scores = self.rest(hidden) * self.scale  # classifier rest
        return F.cross_entropy(scores, labels)  # classifier loss


BATCH = {"images": TensorSpec((5, 6)), "labels": TensorSpec((5,), "int64")}


def test_a_training_step_with_its_loss() -> None:
    graph = capture(Classifier, BATCH, optimizer="AdamW")
    assert not graph.stops
    assert [node.op for node in graph.of_phase("forward")] == [
        "aten.t.default",
        "aten.addmm.default",
        "aten.relu.default",
        "aten.native_dropout.default",
        "aten.t.default",
        "aten.addmm.default",
        "aten.mul.Tensor",
        "aten._log_softmax.default",
        "aten.nll_loss_forward.default",
    ]
    assert len(nodes_of(graph, "aten.mm.default", "backward")) == 3  # the batch needs no gradient
    assert [node.index for node in graph.nodes] == list(range(len(graph.nodes)))
    assert [v.index for v in graph.values] == list(range(len(graph.values)))
    assert graph.values[graph.loss].shape == ()
    assert (graph.batch_size, graph.trains, graph.optimizer) == (5, True, "AdamW")
    assert graph.num_parameters == 6 * 8 + 8 + 8 * 3 + 3


def test_values_have_kinds_names_and_sizes() -> None:
    graph = capture(Classifier, BATCH)
    assert {v.name: (v.kind, v.shape, v.dtype) for v in graph.values if v.name} == {
        "images": ("input", (5, 6), "float32"),
        "labels": ("input", (5,), "int64"),
        "first.weight": ("parameter", (8, 6), "float32"),
        "first.bias": ("parameter", (8,), "float32"),
        "rest.2.weight": ("parameter", (3, 8), "float32"),
        "rest.2.bias": ("parameter", (3,), "float32"),
        "scale": ("buffer", (3,), "float32"),
    }
    assert value(graph, "first.weight").requires_grad
    assert not value(graph, "scale").requires_grad
    (addmm, _) = nodes_of(graph, "aten.addmm.default")
    assert addmm.args[0] == Ref(value(graph, "first.bias").index)
    assert addmm.args[1] == Ref(value(graph, "images").index)
    assert addmm.inputs == tuple(arg.value for arg in addmm.args)
    assert graph.output_values(addmm)[0].requires_grad


def test_modules_are_those_of_the_user() -> None:
    graph = capture(Classifier, BATCH)
    assert [(m.path, m.kind, m.parameters) for m in graph.modules] == [
        ("", "Classifier", 0),
        ("first", "Linear", 56),
        ("rest", "Sequential", 0),
        ("rest.0", "ReLU", 0),
        ("rest.1", "Dropout", 0),
        ("rest.2", "Linear", 27),
    ]
    paths = Counter(node.module for node in graph.of_phase("forward"))
    assert paths == {"first": 2, "rest.0": 1, "rest.1": 1, "rest.2": 2, "": 3}


def test_each_op_has_the_line_of_the_user_and_what_it_called() -> None:
    graph = capture(Classifier, BATCH)
    by_line: dict[int, set[str]] = {}
    for node in graph.nodes:
        assert node.place is not None
        assert Path(node.place.file) == HERE
        by_line.setdefault(node.place.line, set()).add(node.call)
    assert by_line == {
        line_of("classifier first"): {"torch.nn.modules.linear.Linear"},
        line_of("classifier rest"): {
            "torch.nn.modules.activation.ReLU",
            "torch.nn.modules.dropout.Dropout",
            "torch.nn.modules.linear.Linear",
            "torch.Tensor.mul",
        },
        line_of("classifier loss"): {"torch.nn.functional.cross_entropy"},
    }
    place = graph.nodes[0].place
    assert place is not None
    assert place.code.startswith("hidden = self.first(images)")
    assert place.function.endswith("forward")


def test_backward_belongs_to_the_forward_that_it_is_the_gradient_of() -> None:
    graph = capture(Classifier, BATCH)
    for node in graph.of_phase("backward"):
        forward = graph.nodes[node.forward]
        assert forward.phase == "forward"
        assert (node.module, node.place, node.call) == (forward.module, forward.place, forward.call)
    pairs = {
        (node.op, graph.nodes[node.forward].op)
        for node in graph.of_phase("backward")
        if "backward" in node.op
    }
    assert pairs == {
        ("aten.nll_loss_backward.default", "aten.nll_loss_forward.default"),
        ("aten._log_softmax_backward_data.default", "aten._log_softmax.default"),
        ("aten.native_dropout_backward.default", "aten.native_dropout.default"),
        ("aten.threshold_backward.default", "aten.relu.default"),
    }


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.embed(ids)), ids)


def test_tied_weights_count_once_and_their_gradients_add_up() -> None:
    graph = capture(Tied, TensorSpec((3,), "int64"))
    assert graph.num_parameters == 44
    assert [m.parameters for m in graph.modules] == [0, 44, 0]
    (total,) = nodes_of(graph, "aten.add.Tensor", "backward")
    assert graph.values[total.outputs[0]].shape == (11, 4)


def test_views_share_the_storage_of_their_base() -> None:
    def step(x: Tensor) -> Tensor:
        view = x.view(2, 6).t()[1:]
        return (view * 2).sum()

    graph = capture(lambda: step, torch.randn(3, 4, requires_grad=True))
    given = next(v for v in graph.values if v.kind == "input")
    for node in graph.of_phase("forward"):
        (made,) = graph.output_values(node)
        is_view = node.op in ("aten.view.default", "aten.t.default", "aten.slice.Tensor")
        assert (made.base == given.index) == is_view, node.op
        assert is_view or made.base == made.index


def test_in_place_ops_make_a_new_value_of_the_same_storage() -> None:
    def step(x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1)
        y[0] = 0
        torch.mul(y.detach(), 3, out=(out := torch.empty_like(y)))
        return y.sum() + out.sum()

    graph = capture(lambda: step, torch.randn(3, 4, requires_grad=True))
    (product,) = nodes_of(graph, "aten.mul.Tensor", "forward")
    (added,) = nodes_of(graph, "aten.add_.Tensor")
    assert added.inputs == product.outputs
    assert added.outputs != added.inputs
    assert graph.values[added.outputs[0]].base == product.outputs[0]
    (written,) = nodes_of(graph, "aten.mul.out")
    (empty,) = nodes_of(graph, "aten.empty_like.default")
    assert graph.values[written.outputs[0]].base == empty.outputs[0]
    (first_sum, second_sum) = nodes_of(graph, "aten.sum.default", "forward")
    assert second_sum.inputs == written.outputs
    assert graph.values[first_sum.inputs[0]].base == product.outputs[0]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x  # square forward

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * x * 2  # square backward


class WithFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return Square.apply(self.layer(x)).sum()


def test_the_backward_of_a_users_function_has_its_own_line() -> None:
    graph = capture(WithFunction, TensorSpec((2, 4)))
    (squared,) = nodes_of(graph, "aten.mul.Tensor", "forward")
    assert squared.place is not None
    assert squared.place.line == line_of("square forward")
    for node in nodes_of(graph, "aten.mul.Tensor", "backward"):
        assert node.place is not None
        assert node.place.line == line_of("square backward")
        assert node.forward == squared.index


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_ops_are_part_of_backward_with_their_line_and_module(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def inner(self, x: Tensor) -> Tensor:
            return self.layer(x).tanh()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x * 1, use_reentrant=reentrant).sum()

    graph = capture(Checkpointed, torch.randn(2, 4, requires_grad=True))
    assert not graph.stops
    again = nodes_of(graph, "aten.addmm.default", "backward")
    assert [node.module for node in again] == ["layer"]
    assert again[0].place is not None
    assert again[0].place.code == "return self.layer(x).tanh()"
    assert again[0].call == "torch.nn.modules.linear.Linear"
    (gradient,) = nodes_of(graph, "aten.tanh_backward.default")
    assert gradient.place is not None
    assert gradient.place.code == "return self.layer(x).tanh()"


def test_casts_are_active_in_forward_alone() -> None:
    graph = capture(Classifier, BATCH, casts=torch.autocast("cpu", dtype=torch.bfloat16))
    (first, _) = nodes_of(graph, "aten.addmm.default")
    assert graph.output_values(first)[0].dtype == "bfloat16"
    assert not torch.is_autocast_enabled("cpu")


def test_a_model_of_any_size_needs_no_memory() -> None:
    class Huge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(10**6, 10**6)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).mean()

    graph = capture(Huge, TensorSpec((64, 10**6)))
    assert graph.num_parameters == 10**12 + 10**6
    assert not graph.stops


def test_a_constructor_may_read_small_tensors() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(nn.Linear(4, 4), nn.Dropout(rate.item())) for rate in torch.linspace(0, 0.2, 3)
            )
            self.register_buffer("table", torch.from_numpy(np.arange(4, dtype=np.float32)))
            self.offsets = torch.arange(4)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return (x * self.table + self.offsets).sum()

    graph = capture(Deep, TensorSpec((2, 4)))
    assert not graph.stops
    assert [node.args[1] for node in nodes_of(graph, "aten.native_dropout.default")] == pytest.approx(
        [0.1, 0.2]
    )
    assert value(graph, "table").kind == "buffer"
    assert [v.shape for v in graph.values if v.kind == "constant"] == [(4,)]


def test_a_forward_pass_alone() -> None:
    graph = capture(lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout()), TensorSpec((2, 6)), trains=False)
    assert [node.op for node in graph.nodes] == ["aten.t.default", "aten.addmm.default"]
    assert graph.loss == -1
    assert not graph.trains


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


class Base(nn.Module):
    def __init__(self, result: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.result = nn.Linear(6, 3), result

    def forward(self, x: Tensor) -> Any:
        return self.result(self.layer(x))


@pytest.mark.parametrize(
    "result",
    [
        lambda y: y.mean(),
        lambda y: (y.mean(), y),
        lambda y: {"loss": y.mean(), "logits": y},
        lambda y: Output(y.mean(), y),
        lambda y: y.mean().reshape(1),
    ],
)
def test_the_loss_in_what_a_model_returns(result: Callable[[Tensor], Any]) -> None:
    graph = capture(lambda: Base(result), TensorSpec((2, 6)))
    assert not graph.stops
    assert "loss" not in graph.info
    assert graph.values[graph.loss].shape == ()
    assert nodes_of(graph, "aten.mm.default", "backward")


@pytest.mark.parametrize(
    "result", [lambda y: y, lambda y: (y, y.argmax(-1)), lambda y: {"logits": y}, lambda y: Output(None, y)]
)
def test_outputs_stand_for_a_loss_where_there_is_none(result: Callable[[Tensor], Any]) -> None:
    graph = capture(lambda: Base(result), TensorSpec((2, 6)))
    assert not graph.stops
    assert "mean of the model's outputs" in graph.info["loss"]
    assert nodes_of(graph, "aten.mm.default", "backward")


class Taught(PyTorchBaseModel):
    def __init__(self) -> None:
        self.loss_fn = nn.CrossEntropyLoss()
        super().__init__({}, nn.Linear(6, 3))

    def __call__(self, data: Any) -> Tensor:
        images, labels = data
        loss: Tensor = self.loss_fn(self.model(images), labels)
        return loss


def test_the_taught_model_and_a_plain_function() -> None:
    graph = capture(Taught, (TensorSpec((2, 6)), TensorSpec((2,), "int64")))
    assert [v.name for v in graph.values if v.kind == "parameter"] == ["weight", "bias"]
    assert [v.name for v in graph.values if v.kind == "input"] == ["0", "1"]
    assert {node.module for node in graph.nodes} == {""}
    weight = nn.Parameter(torch.ones(6))
    graph = capture(lambda: lambda batch: (batch["x"] * weight).sum(), {"x": TensorSpec((2, 6))})
    assert not graph.stops
    assert graph.num_parameters == 6
    assert weight.grad is None


def test_a_custom_op_is_recorded_under_its_own_name() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(50, 8))

        def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
            return chunked_cross_entropy(hidden, self.weight, targets)  # head

    batch = (TensorSpec((4, 8)), TensorSpec((4,), "int64"))
    graph = capture(Head, batch, fuses_attention=True)  # else it is plain ops
    assert not graph.stops
    (node,) = [n for n in graph.nodes if n.op.startswith("portwright.")]
    assert node.op == "portwright.head_loss_and_gradients.default"
    assert node.place is not None
    assert node.place.line == line_of("head")


def test_a_model_that_exists_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch = torch.randn(3, 4)
    graph = capture(lambda: model, batch)
    assert graph.num_parameters == 28
    assert not model.training
    for name, tensor in model.state_dict().items():
        assert not isinstance(tensor, FakeTensor)
        assert torch.equal(tensor, before[name]), name
    assert all(p.grad is None for p in model.parameters())
    assert model(batch).isfinite().all()


def _state() -> tuple[Any, ...]:
    return (
        nn.Module.__call__,
        FakeTensor.tolist,
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch._C._get_mkldnn_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        _len_torch_function_stack(),
        _get_current_dispatch_mode(),
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
    )


class Careless(nn.Module):
    def __init__(self, fails: str) -> None:
        super().__init__()
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("cpu")
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        self.layer = nn.Linear(4, 4)
        self.fails = fails
        if fails == "constructor":
            raise KeyError("width")

    def forward(self, x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        if self.fails == "forward":
            raise ValueError("no")
        torch.set_grad_enabled(True)
        return self.layer(x.double()).sum()


@pytest.mark.parametrize("fails", ["", "constructor", "forward"])
def test_nothing_is_left_set_for_the_process(fails: str) -> None:
    before = _state()
    graph = capture(lambda: Careless(fails), TensorSpec((2, 4)))
    assert _state() == before
    assert [stop.kind for stop in graph.stops] == (["failure"] if fails else [])


def test_flops_are_those_of_a_real_step() -> None:
    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = nn.Conv2d(3, 5, 3), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.conv(x).mean((2, 3))).sum()

    batch = torch.randn(2, 3, 8, 8)
    with FlopCounterMode(display=False) as counter:
        Conv()(batch).backward()
    expected = Counter()
    for ops in counter.flop_counts.values():
        expected.update({str(op): 1 for op in ops})
    graph = capture(Conv, batch)
    recorded = {node.op.rpartition(".")[0] for node in graph.nodes}
    assert set(expected) <= recorded


def test_equal_layers_name_the_one_that_they_repeat() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))
            self.last = nn.Sequential(nn.Linear(4, 5), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            x = x * nn.functional.softplus(x)
            x.requires_grad_()
            for block in self.blocks:
                x = block(x)
            return self.last(x).sum()

    graph = capture(Deep, TensorSpec((2, 4)))
    repeats = {m.path: m.repeats for m in graph.modules if m.repeats}
    assert repeats["blocks.1"] == "blocks.0"
    assert repeats["blocks.2.0"] == "blocks.0.0"
    assert "last" not in repeats
    assert "blocks.0" not in repeats


def test_library_code_is_not_the_users_unless_there_is_nothing_else(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "bought.py"
    package.parent.mkdir()
    package.write_text("def loss(x):\n    return (x * x).sum()\n")
    sys.path.insert(0, str(package.parent))
    try:
        import bought
    finally:
        sys.path.remove(str(package.parent))

    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return bought.loss(self.layer(x))  # mine

    graph = capture(Mine, TensorSpec((2, 4)))
    assert {node.place.line for node in graph.nodes if node.place} == {line_of("mine")}
    graph = capture(lambda: bought.loss, torch.randn(2, 4, requires_grad=True))
    assert {node.place.file for node in graph.nodes if node.place} == {str(package)}
    graph = capture(Mine, TensorSpec((2, 4)), root=package.parent)
    (summed,) = nodes_of(graph, "aten.sum.default", "forward")
    assert summed.place is not None
    assert summed.place.file == str(package)
    graph = capture(Mine, TensorSpec((2, 4)), root=tmp_path)  # a project with its environment inside
    assert {node.place.line for node in graph.nodes if node.place} == {line_of("mine")}


def test_a_factory_that_makes_no_model() -> None:
    with pytest.raises(UserError, match="returned int"):
        capture(lambda: 3, TensorSpec((2, 4)))


def test_an_initializer_that_draws_until_all_values_suit_ends() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(256, 256)
            nn.init.trunc_normal_(self.linear.weight, std=0.02)
            while not bool((self.linear.weight < 1).all()):
                nn.init.normal_(self.linear.weight)
            while bool((self.linear.weight > 1).any()):
                nn.init.normal_(self.linear.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).square().mean()

    assert capture(Net, TensorSpec((4, 256), "float32")).num_parameters == 256 * 257
