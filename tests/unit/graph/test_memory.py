"""Memory of a step, against what autograd really saves and what optimizers really keep."""

from __future__ import annotations

import weakref
from typing import Any

import plan_graphs as models
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from portwright.graph.capturing.capture import capture
from portwright.graph.graph import Graph, Module, Node, Ref, Value
from portwright.graph.plans.memory import Memory, Moment, largest_batch, measure_memory, most_bytes
from portwright.graph.plans.optimizer_state import OptimizerCost
from portwright.graph.plans.rows import Rows
from portwright.job.optimizer import OPTIMIZERS
from portwright.runtime.optimizers import make_optimizer

NONE = OptimizerCost("")


def measured(graph: Graph, optimizer: OptimizerCost = NONE) -> Memory:
    return measure_memory(graph, Rows(graph), optimizer)


@pytest.mark.parametrize("name", models.CASES)
def test_saved_activations_are_what_autograd_saves(name: str) -> None:
    make, batch_of = models.CASES[name]
    model, batch = make(), batch_of(4)
    given = [*model.parameters(), *model.buffers(), *batch]
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    kept: list[torch.Tensor] = []  # alive, so that no address comes twice

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(*batch)
    saved = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    expected = sum(size for address, size in saved.items() if address not in known)
    memory = measured(models.graph_of(name, 4))
    assert memory.saved == expected
    assert sum(layer.activations for layer in memory.layers) == memory.saved
    assert memory.saved <= memory.activations <= memory.peak


class LiveStorages(TorchDispatchMode):
    """Counts the bytes of storages that live while real tensors compute."""

    def __init__(self, given: list[torch.Tensor]) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage()._cdata for tensor in given}
        self._now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in self._known:
                self._known.add(storage._cdata)
                self._now += storage.nbytes()
                weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self._now)
        return result

    def _forget(self, address: int, size: int) -> None:
        self._known.discard(address)
        self._now -= size


@pytest.mark.parametrize("name", models.CASES)
def test_the_peak_is_that_of_a_real_step(name: str) -> None:
    make, batch_of = models.CASES[name]
    model, batch = make(), batch_of(4)
    with LiveStorages([*model.parameters(), *model.buffers(), *batch]) as live:
        model(*batch).backward()
    memory = measured(models.graph_of(name, 4))
    # The loss is counted to the end of the step; torch lets go of it or not.
    assert memory.peak - memory.weights - memory.inputs == pytest.approx(live.peak, abs=16)


@pytest.mark.parametrize("name", models.CASES)
def test_weights_and_gradients_are_counted_once(name: str) -> None:
    model = models.CASES[name][0]()
    memory = measured(models.graph_of(name, 4))
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    assert memory.weights == parameters + buffers == sum(layer.weights for layer in memory.layers)
    assert memory.gradients == parameters
    # All gradients live at the end, so the peak is at least this.
    assert memory.peak >= memory.weights + memory.gradients


@pytest.mark.parametrize("name", models.CASES)
@pytest.mark.parametrize("size", [1, 3, 16])
def test_the_peak_at_another_batch_is_that_of_a_capture_with_it(name: str, size: int) -> None:
    here, there = measured(models.graph_of(name, 4)), measured(models.graph_of(name, size))
    assert here.peak_at(4) == here.peak
    # A few scalars and statistics of channels come from the batch but do not grow with it.
    assert here.peak_at(size) == pytest.approx(there.peak, abs=64 * 16 + 0.001 * there.peak)


def test_mixed_precision_shows_as_copies_of_weights_and_smaller_activations() -> None:
    plain = measured(models.graph_of("text", 4))
    half = measured(models.graph_of("text", 4, casts=torch.autocast("cpu", dtype=torch.bfloat16)))
    assert plain.weight_copies == 0
    assert 0 < half.weight_copies <= half.weights // 2
    assert half.saved < plain.saved
    assert half.weights == plain.weights


def test_a_forward_pass_keeps_nothing() -> None:
    memory = measured(models.graph_of("dense", 8, trains=False), OptimizerCost("Adam"))
    assert memory.gradients == memory.optimizer == memory.saved == 0
    # The widest moment: input and output of one hidden layer, or its relu.
    assert memory.activations == 2 * 8 * 50 * 4


def test_liveness_by_hand() -> None:
    """x -> a (40 bytes) -> view of a -> b (80) reads the view -> c (4) reads b: a dies with b's birth, b with c's."""
    values = (
        Value(0, (10,), "float32", "input", "x", base=0),
        Value(1, (10,), "float32", "activation", base=1),
        Value(2, (5, 2), "float32", "activation", base=1),
        Value(3, (20,), "float32", "activation", base=3),
        Value(4, (), "float32", "activation", base=4),
    )
    nodes = tuple(
        Node(i, op, "forward", (Ref(source),), {}, (source,), (made,), "layer")
        for i, (op, source, made) in enumerate(
            [
                ("aten.relu.default", 0, 1),
                ("aten.view.default", 1, 2),
                ("aten.cat.default", 2, 3),
                ("aten.sum.default", 3, 4),
            ]
        )
    )
    modules = (Module("", "Net", 0), Module("layer", "Layer", 0))
    memory = measured(Graph(nodes, values, modules, (), 10, False))
    assert memory.inputs == 40
    assert memory.activations == 120
    assert memory.peak == 160
    assert [layer.activations for layer in memory.layers] == [120]


def test_an_empty_graph_takes_nothing() -> None:
    assert measured(Graph((), (), (), (), 0, True)).peak == 0


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=6),
    st.integers(1, 64),
    st.integers(0, 10**8),
)
def test_the_largest_batch_fits_and_one_more_does_not(
    parts: list[tuple[int, int]], captured: int, room: int
) -> None:
    moments = tuple(Moment(scaled, fixed) for scaled, fixed in parts)
    best = largest_batch(moments, captured, room)
    if best is None:
        assert most_bytes(moments, captured, 10**12) <= room
        return
    assert best == 0 or most_bytes(moments, captured, best) <= room
    assert most_bytes(moments, captured, best + 1) > room


_VARIANTS = [
    *((name, {}) for name in OPTIMIZERS if name not in ("Adafactor", "Muon")),
    ("SGD", {"momentum": 0.9}),
    ("Adam", {"amsgrad": True}),
    ("RMSprop", {"momentum": 0.5, "centered": True}),
    ("Adafactor", {}),
    ("Adafactor", {"beta1": 0.9}),
    ("Muon", {}),
]


@pytest.mark.parametrize(("name", "options"), _VARIANTS)
def test_state_is_what_the_optimizer_really_keeps(name: str, options: dict[str, float]) -> None:
    model = torch.nn.Sequential(torch.nn.Conv1d(3, 4, 2), torch.nn.Flatten(), torch.nn.Linear(12, 5))
    spec = OPTIMIZERS[name].model_validate({"learning_rate": 0.01, **options})
    optimizer = make_optimizer(model, spec)
    model(torch.randn(2, 3, 4)).square().mean().backward()
    optimizer.step()
    kept = sum(
        tensor.numel() * tensor.element_size()
        for state in optimizer.state.values()
        for tensor in state.values()
        if isinstance(tensor, torch.Tensor) and tensor.ndim  # a counter is a scalar
    )
    graph = capture(lambda: model, torch.randn(2, 3, 4))
    cost = OptimizerCost(name, spec.model_dump())
    assert cost.is_known
    assert cost.state_bytes([v for v in graph.values if v.kind == "parameter"]) == kept
    assert cost.update_flops([v for v in graph.values if v.kind == "parameter"]) > 0


def test_an_unknown_optimizer_says_what_is_assumed() -> None:
    cost = OptimizerCost("Sophia")
    assert not cost.is_known
    assert "assumed" in cost.formula
