"""Modes, fits, estimates and the JSON of a plan."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import plan_graphs as models
import pytest
from torch import nn

from portwright.errors import UserError
from portwright.graph.capturing.capture import capture
from portwright.graph.inputs import TensorSpec
from portwright.graph.kernels import Verdict
from portwright.graph.match import MatchReport, Refusal
from portwright.graph.plans.estimate import FC_MNIST
from portwright.graph.plans.fit import parse_mode
from portwright.graph.plans.optimizer_state import OptimizerCost
from portwright.graph.plans.plan import Plan, make_plan
from portwright.graph.plans.report import report
from portwright.target import Hardware
from portwright.targets.csx import hardware as cs2

BOX = Hardware("a box", 10**9, ("resident",), {})
FOUR_CHIPS = Hardware("four chips", 4 * 10**6, ("layer_pipelined",), {}, num_cores=400, num_chips=4)


def plan_of(name: str, machine: Hardware, size: int = 4, **options: Any) -> Plan:
    options.setdefault("optimizer", OptimizerCost("AdamW"))
    return make_plan(models.trusted(models.graph_of(name, size)), machine, **options)


def test_the_published_compile_comes_out_as_published() -> None:
    plan = plan_of("dense", cs2(), 128, optimizer=OptimizerCost("SGD", {"momentum": 0.9}))
    document = plan.as_json()
    assert document["mode"] == "layer_pipelined"
    assert document["total_utilization"] == 0.0588006479419213
    assert document["estimated_deltat"] == 674
    low, high = document["estimates"]["total_utilization"]["interval"]
    assert low < 0.0588006479419213 < high


def test_the_calibration_is_of_our_own_count_of_that_network() -> None:
    assert plan_of("dense", cs2(), 128).flops.total.products == FC_MNIST.products


def test_every_estimate_says_how_it_was_made() -> None:
    for machine in (cs2(), BOX, FOUR_CHIPS):
        for name, estimate in plan_of("text", machine).as_json()["estimates"].items():
            assert estimate["estimated"] is True, name
            assert "not the vendor's compiler" in estimate["made_by"]
            assert estimate["formula"]
            assert estimate["inputs"]
            assert estimate["interval_from"]
            low, high = estimate["interval"]
            assert low <= estimate["value"] <= high, name


def test_the_interval_widens_away_from_the_calibration_point() -> None:
    def width(name: str, size: int) -> float:
        low, high = plan_of(name, cs2(), size).estimates["total_utilization"].interval
        return math.log(high / low)

    assert width("text", 4) > width("dense", 128)


def test_layers_lie_on_the_fabric_in_proportion_to_their_work() -> None:
    document = plan_of("text", cs2()).as_json()
    placed = [layer for layer in document["layers"] if layer["share_of_work"] > 0.01]
    whole = document["total_utilization"]
    for layer in placed:
        rectangle = layer["rectangle"]
        assert rectangle["x"] + rectangle["width"] <= 757
        assert rectangle["y"] + rectangle["height"] <= 996
        assert layer["share_of_fabric"] == pytest.approx(layer["share_of_work"] * whole, rel=0.05)


def test_json_is_plain_and_adds_up() -> None:
    document = json.loads(json.dumps(plan_of("images", cs2()).as_json(), allow_nan=False))
    assert {
        "supported",
        "refused",
        "parameters",
        "flops_per_sample",
        "memory_bytes",
        "fits",
        "mode",
        "estimates",
    } <= set(document)
    assert {"weights", "optimizer", "activations"} <= set(document["memory_bytes"])
    for key in ("weights", "gradients", "optimizer"):
        assert (
            sum(layer["memory_bytes"][key] for layer in document["layers"]) == document["memory_bytes"][key]
        )
    assert sum(layer["parameters"] for layer in document["layers"]) == document["parameters"]
    flops = sum(sum(layer["flops_per_sample"].values()) for layer in document["layers"])
    assert flops == pytest.approx(document["flops_per_sample"], abs=len(document["layers"]))
    assert sum(op["count"] for op in document["ops"]) == len(models.graph_of("images", 4).nodes)


def test_resident_fits_or_says_what_would() -> None:
    good = plan_of("dense", BOX, 128)
    assert good.fit.fits
    assert good.is_good
    tight = plan_of("dense", replace(BOX, memory_bytes=good.memory.peak - 1), 128)
    assert tight.fit.fits is False
    assert not tight.is_good
    assert tight.fit.largest_batch is not None
    assert 100 < tight.fit.largest_batch < 128
    assert any(str(tight.fit.largest_batch) in change for change in tight.changes)
    fitting = plan_of("dense", replace(BOX, memory_bytes=good.memory.peak - 1), tight.fit.largest_batch)
    assert fitting.fit.fits
    tiny = plan_of("dense", replace(BOX, memory_bytes=1000), 128)
    assert tiny.fit.largest_batch == 0
    assert any("No batch size fits" in change for change in tiny.changes)


def test_memory_that_is_not_known_is_said_so() -> None:
    plan = plan_of("dense", replace(BOX, memory_bytes=0))
    assert plan.fit.fits is None
    assert plan.is_good
    assert plan.as_json()["largest_batch"] is None
    assert "--memory" in plan.as_json()["largest_batch_note"]


def test_small_models_are_pipelined_and_large_ones_streamed() -> None:
    assert plan_of("text", cs2()).fit.mode == "layer_pipelined"
    forced = plan_of("text", cs2(), mode="weight_streaming")
    assert forced.fit.mode == "weight_streaming"
    assert "--mode" in forced.fit.why_mode
    assert forced.as_json()["total_utilization"] is None

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(30_000, 34_000)
            self.b = nn.Linear(34_000, 10)

        def forward(self, x: Any) -> Any:
            return self.b(self.a(x)).mean()

    graph = capture(Wide, TensorSpec((2, 30_000)))
    large = make_plan(models.trusted(graph), cs2())
    assert large.graph.num_parameters > 10**9
    assert large.fit.mode == "weight_streaming"
    assert large.fit.fits
    pipelined = make_plan(
        models.trusted(graph), cs2(), mode="layer_pipelined", optimizer=OptimizerCost("Adam")
    )
    assert pipelined.fit.fits  # 16 GB of 37: asked for, it is placed


def test_a_small_model_that_does_not_fit_pipelined_is_streamed() -> None:
    small = replace(cs2(), memory_bytes=4 * 10**5, core_memory_bytes=None)
    plan = plan_of("text", small)
    assert plan.fit.mode == "weight_streaming"
    assert "do not fit" in plan.fit.why_mode
    forced = plan_of("text", small, mode="layer_pipelined")
    assert forced.fit.fits is False
    assert any("weight_streaming" in change for change in forced.changes)


def test_weight_streaming_needs_less_than_everything_at_once() -> None:
    plan = plan_of("text", cs2(), mode="weight_streaming")
    layers = plan.memory.layers
    assert plan.fit.needed_bytes < plan.memory.peak
    assert plan.fit.needed_bytes >= max(layer.weights + layer.gradients for layer in layers)


def test_chips_share_the_layers() -> None:
    one = plan_of("text", FOUR_CHIPS)
    assert len(one.fit.stages) == 1
    needed = one.memory.peak
    several = plan_of("text", replace(FOUR_CHIPS, memory_bytes=4 * (needed * 3 // 4)))
    assert len(several.fit.stages) > 1
    document = several.as_json()
    assert [layer["stage"] for layer in document["layers"]] == sorted(
        layer["stage"] for layer in document["layers"]
    )
    assert all(stage["memory_bytes"] <= stage["memory_available"] for stage in document["stages"])
    assert plan_of("text", replace(FOUR_CHIPS, memory_bytes=4000)).fit.fits is False


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        (None, None),
        ("auto", None),
        ("Pipelined", "layer_pipelined"),
        ("weight-streaming", "weight_streaming"),
    ],
)
def test_modes_have_several_spellings(text: str | None, mode: str | None) -> None:
    assert parse_mode(text) == mode


def test_modes_that_are_not_there() -> None:
    with pytest.raises(UserError, match="weight_streaming"):
        parse_mode("weight_stream")
    with pytest.raises(UserError, match="It has: resident"):
        plan_of("dense", BOX, mode="weight_streaming")


def test_refusals_are_counted_by_layer_and_told_with_their_cure() -> None:
    graph = models.graph_of("dense", 4)
    verdicts = tuple(
        Verdict("refused" if node.op == "aten.relu.default" else "native") for node in graph.nodes
    )
    refusal = Refusal("aten.relu.default", "layers.0", "/nowhere/model.py", 7, "it cannot", "Do that.", 10)
    plan = make_plan(
        MatchReport("CSX", "label", graph, verdicts, (refusal,)),
        cs2(),
        legalise={"removed": 1, "of": 1, "applied": False, "left": 0, "swaps": []},
    )
    assert not plan.is_good
    assert sum(plan.refused_in) == 10
    assert plan.changes[0] == "--legalise would remove 1 of 1 refusals by itself."
    lines = report({"csx": plan})
    assert lines[0].startswith("CSX: not supported")
    assert "  /nowhere/model.py:7: aten.relu.default: it cannot (in layers.0, 10 times)" in lines
    assert "      cure: Do that." in lines


def test_identical_layers_are_one_line_of_the_table() -> None:
    lines = report({"csx": plan_of("text", cs2())})
    assert any(line.startswith("blocks.0-2 x3  Block") for line in lines)
    dense = report({"csx": plan_of("dense", cs2())})
    assert any(line.startswith("layers.1-9 x9") for line in dense)
    assert any(line.startswith("layers.0 ") for line in dense)


def test_several_targets_stand_side_by_side() -> None:
    lines = report({"csx": plan_of("text", cs2()), "box": plan_of("text", BOX)})
    assert any("CS-2 (WSE-2)" in line and "a box" in line for line in lines)


def test_an_empty_step_can_be_planned() -> None:
    graph = replace(models.graph_of("dense", 4), nodes=(), values=(), modules=(), loss=-1)
    for machine in (cs2(), BOX, FOUR_CHIPS):
        plan = make_plan(models.trusted(graph), machine)
        json.dumps(plan.as_json(), allow_nan=False)
        assert report({"x": plan})
