"""Plans for a device with a host beside it: resident, streamed from host memory, or split over processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import plan_graphs as models
import pytest
from torch import nn

from portwright.errors import UserError
from portwright.graph.capturing.capture import capture
from portwright.graph.graph import Graph
from portwright.graph.inputs import TensorSpec
from portwright.graph.picture import make_page
from portwright.graph.plans.fit import measure_streamed, streamed_layers
from portwright.graph.plans.optimizer_state import OptimizerCost
from portwright.graph.plans.plan import Plan, make_plan
from portwright.graph.plans.report import report
from portwright.target import Hardware

DEVICE = Hardware(
    "a device",
    10**9,
    ("resident", "layer_pipelined", "weight_streaming"),
    {},
    num_cores=2,
    streaming_bytes=10**9,
)


def text_graph(num_layers: int) -> Graph:
    ids = TensorSpec((4, 16), "int64")
    return capture(lambda: models.Text(num_layers), (ids, ids), optimizer="AdamW")


def plan_of(graph: Graph, machine: Hardware = DEVICE, **options: Any) -> Plan:
    return make_plan(models.trusted(graph), machine, optimizer=OptimizerCost("AdamW"), **options)


def test_what_fits_stays_resident() -> None:
    plan = plan_of(text_graph(3))
    assert (plan.fit.mode, plan.fit.execution, plan.fit.fits) == ("resident", "resident", True)
    assert "to run it so  runconfig.execution: resident" in "\n".join(report({"d": plan}))


def test_what_does_not_fit_is_streamed_and_needs_host_memory() -> None:
    graph = text_graph(8)
    peak = plan_of(graph).memory.peak
    plan = plan_of(graph, replace(DEVICE, memory_bytes=peak - 1))
    assert (plan.fit.mode, plan.fit.fits) == ("weight_streaming", True)
    assert plan.fit.needed_bytes < peak
    blocks = [layer for layer, row in zip(plan.memory.layers, plan.rows, strict=True) if "blocks" in row.path]
    assert len(blocks) == 8
    # Weights and two moments of each block, and a ring of four gradients.
    assert plan.fit.host_bytes == 3 * sum(block.weights for block in blocks) + 4 * blocks[0].gradients
    document = plan.as_json()
    assert (document["execution"], document["host_bytes"]) == ("streaming", plan.fit.host_bytes)
    assert "to run it so  runconfig.execution: streaming" in "\n".join(report({"d": plan}))


def test_device_memory_of_a_streamed_step_grows_with_inputs_of_layers_alone() -> None:
    small, large = (plan_of(text_graph(n), mode="weight_streaming") for n in (4, 12))
    block = next(
        layer for layer, row in zip(small.memory.layers, small.rows, strict=True) if row.path == "blocks.0"
    )
    assert block.entering == 4 * 16 * 32 * 4  # batch, length, size, bytes
    assert large.fit.needed_bytes - small.fit.needed_bytes == 8 * block.entering
    assert large.memory.peak - small.memory.peak > 8 * 4 * block.weights


def test_more_slots_hold_more_layers() -> None:
    plan = plan_of(text_graph(8))
    names = [row.name for row in plan.rows]
    two, four = (measure_streamed(plan.memory, names, True, slots) for slots in (2, 4))
    block = plan.memory.layers[two.layers[0]]
    assert four.device_bytes - two.device_bytes == 2 * block.weights
    assert four.host_bytes == two.host_bytes


def test_host_memory_that_is_too_small_is_said_with_the_cure() -> None:
    graph = text_graph(8)
    peak = plan_of(graph).memory.peak
    plan = plan_of(graph, replace(DEVICE, memory_bytes=peak - 1, streaming_bytes=1000))
    assert plan.fit.fits is False
    assert plan.fit.capacity_bytes == 1000
    assert "runconfig.streaming.store" in plan.fit.why
    assert not plan.is_good


def test_a_layer_larger_than_the_device_fits_nowhere() -> None:
    plan = plan_of(text_graph(3), replace(DEVICE, memory_bytes=10_000))
    assert (plan.fit.mode, plan.fit.fits, plan.fit.largest_batch) == ("weight_streaming", False, 0)
    assert not any("to run it so" in line for line in report({"d": plan}))


def test_the_largest_batch_of_a_streamed_step_fits_and_one_more_does_not() -> None:
    graph = text_graph(8)
    machine = replace(DEVICE, memory_bytes=plan_of(graph).memory.peak - 1)
    plan = plan_of(graph, machine, mode="weight_streaming")
    best = plan.fit.largest_batch
    assert best is not None
    assert best > 4
    step = measure_streamed(plan.memory, [row.name for row in plan.rows], True)
    size = plan.memory.batch_size
    needs = [max(m.fixed + -(-m.scaled * n // size) for m in step.moments) for n in (best, best + 1)]
    assert needs[0] <= machine.memory_bytes < needs[1]


def test_processes_are_as_few_as_hold_the_step() -> None:
    graph = text_graph(8)
    peak = plan_of(graph).memory.peak
    plan = plan_of(graph, replace(DEVICE, memory_bytes=peak * 2 // 3), mode="layer_pipelined")
    assert plan.fit.fits
    assert len(plan.fit.stages) == 2
    assert max(stage.memory_bytes for stage in plan.fit.stages) == plan.fit.needed_bytes <= peak * 2 // 3
    told = "\n".join(report({"d": plan}))
    assert "torchrun --nproc-per-node 2" in told
    assert "cores for memory" not in told
    page = make_page(plan.as_json())
    assert "process 1: " in page
    assert "chip" not in page
    alone = plan_of(graph, mode="layer_pipelined")
    assert len(alone.fit.stages) == 1
    never = plan_of(graph, replace(DEVICE, memory_bytes=1000), mode="layer_pipelined")
    assert never.fit.fits is False
    assert "no split" in never.fit.why


@pytest.mark.parametrize("mode", [None, "weight_streaming", "layer_pipelined"])
def test_memory_that_is_not_known_speaks_against_nothing(mode: Any) -> None:
    plan = plan_of(text_graph(3), replace(DEVICE, memory_bytes=0, streaming_bytes=None), mode=mode)
    assert plan.fit.fits is None
    assert plan.fit.mode == (mode or "resident")
    assert not any("to run it so" in line for line in report({"d": plan}))


def test_a_machine_with_one_mode_has_nothing_to_choose() -> None:
    plan = plan_of(text_graph(3), replace(DEVICE, modes=("resident",)))
    assert plan.as_json()["execution"] is None


def test_another_framework_has_no_such_modes() -> None:
    graph = replace(text_graph(3), info={"framework": "tensorflow"})
    assert plan_of(graph, replace(DEVICE, memory_bytes=1000)).fit.mode == "resident"
    with pytest.raises(UserError, match="has no execution mode weight_streaming"):
        plan_of(graph, mode="weight_streaming")


@pytest.mark.parametrize(
    ("paths", "streamed"),
    [
        (["emb", "blocks.0", "blocks.1", "head"], (1, 2)),
        (["fc1", "fc2", "(model)"], (0, 1)),
        (["(model)"], (0,)),
        (["0", "1"], (0, 1)),
        (["a.layers.0.x", "a.norm"], (0,)),
    ],
)
def test_items_of_lists_are_streamed(paths: list[str], streamed: tuple[int, ...]) -> None:
    assert streamed_layers(paths) == streamed


def test_a_model_without_weights_takes_nothing_to_stream() -> None:
    graph = capture(lambda: nn.ReLU(), TensorSpec((4, 4), "float32"), trains=False)
    step = plan_of(graph).memory
    assert measure_streamed(step, ["(model)"], False).host_bytes == 0
