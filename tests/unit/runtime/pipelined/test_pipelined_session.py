"""Stages in processes give what one process with the whole model gives: losses, weights, optimizer state, metrics."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from portwright.errors import UserError
from portwright.runtime.pipelined.schedules import Layout, make_layout

Results = list[dict[str, Any]]
# 20 samples in batches of 8: the last batch of an epoch has 4.
EXACT = {"runconfig": {"precision": "fp64"}}
FULL = {
    "optimizer_type": "AdamW",
    "learning_rate": [
        {"scheduler": "Linear", "initial_learning_rate": 0.01, "end_learning_rate": 0.001, "total_iters": 4}
    ],
    "weight_decay_rate": 0.1,
    "max_gradient_norm": 0.1,
    "grad_accum_steps": 2,
    "log_summaries": True,
}


def params(pipeline: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    merged = {name: dict(section) for name, section in (EXACT | sections).items()}
    merged["runconfig"] = {**EXACT["runconfig"], **sections.get("runconfig", {})}
    if pipeline is not None:
        merged["runconfig"]["pipeline"] = pipeline
    return merged


def differ(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of losses, evaluation and every tensor of the state."""
    assert one["weights"].keys() == other["weights"].keys()
    pairs = [(one["weights"][name], other["weights"][name]) for name in one["weights"]]
    pairs += [(one["losses"], other["losses"])]
    if "evaluation" in one:
        assert one["evaluation"].keys() == other["evaluation"].keys()
        pairs += [(one["evaluation"][name], other["evaluation"][name]) for name in one["evaluation"]]
    tensors = [(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)) for a, b in pairs]
    return max((a - b).abs().max().item() for a, b in tensors if a.numel())


@pytest.mark.parametrize(
    ("model", "size", "pipeline"),
    [
        ("MLP", 1, {"micro_batches": 3}),
        ("MLP", 2, {}),
        ("GPT", 2, {"micro_batches": 4}),
        ("TiedModules", 3, {"micro_batches": 4}),
        ("UNet", 3, {"micro_batches": 4}),
        ("Frozen", 2, {"micro_batches": 3, "cuts": ["second"]}),
        ("GPT", 4, {"micro_batches": 2, "replicas": 2}),
        ("GPT", 2, {"micro_batches": 2, "replicas": 2}),
    ],
)
def test_a_pipeline_equals_one_process(play: Any, model: str, size: int, pipeline: dict[str, Any]) -> None:
    """With clipping over all stages, accumulation, weight decay, a schedule of the rate, and short last batches."""
    one = play(model, 1, pipelined=False, evaluates=True, params=params(optimizer=FULL))[0]
    spread = play(model, size, evaluates=True, params=params(pipeline, optimizer=FULL))
    assert differ(one, spread[0]) < 1e-12
    assert all(result["losses"] == spread[0]["losses"] for result in spread)
    assert all(result["evaluation"] == spread[0]["evaluation"] for result in spread)
    assert spread[0]["values"]["gradient_norm"] == pytest.approx(one["values"]["gradient_norm"], rel=1e-12)
    assert spread[0]["values"]["num_samples"] == one["values"]["num_samples"]


@pytest.mark.parametrize(
    ("model", "schedule"),
    [
        *(
            ("GPT", s)
            for s in ("gpipe", "interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zbv_zero_bubble")
        ),
        ("UNet", "dualpipev"),
        ("Frozen", "zbv_zero_bubble"),
    ],
)
def test_every_schedule_gives_the_same(play: Any, model: str, schedule: str) -> None:
    one = play(model, 1, pipelined=False, steps=3, params=params())[0]
    pipeline = {"micro_batches": 4, "schedule": schedule}
    assert differ(one, play(model, 2, steps=3, params=params(pipeline))[0]) < 1e-12


def test_single_precision_is_equal_to_rounding(play: Any) -> None:
    sections = {"runconfig": {"precision": "fp32"}}
    one = play("GPT", 1, pipelined=False, params=params(**sections))[0]
    assert differ(one, play("GPT", 2, params=params({"micro_batches": 4}, **sections))[0]) < 2e-6


def test_each_process_holds_its_part(play: Any) -> None:
    whole = play("UNet", 1, pipelined=False, steps=0, params=params())[0]["held"]
    held = [result["held"] for result in play("UNet", 3, steps=1, params=params())]
    assert sum(held) == whole
    assert max(held) < whole


def test_loss_scaling_is_agreed_on(play: Any) -> None:
    """Most stages never see the loss that is scaled."""
    scaled = {"optimizer_type": "SGD", "learning_rate": 0.1, "loss_scaling_factor": "dynamic"}
    one = play("MLP", 1, pipelined=False, params=params(optimizer=scaled))[0]
    assert differ(one, play("MLP", 2, params=params({"micro_batches": 4}, optimizer=scaled))[0]) < 1e-12


def test_batchnorm_sees_micro_batches(play: Any) -> None:
    sections = {"model": {"batchnorm": True}}
    one = play("UNet", 1, evaluates=True, params=params({"micro_batches": 4}, **sections))[0]
    two = play("UNet", 2, evaluates=True, params=params({"micro_batches": 4}, **sections))[0]
    assert differ(one, two) < 1e-12
    whole = play("UNet", 1, params=params({"micro_batches": 1}, **sections))[0]
    for result, is_told in ((one, True), (two, True), (whole, False)):
        assert any("BatchNorm sees one micro-batch at a time" in note for note in result["notes"]) is is_told


def test_resume_is_the_undisturbed_run(play: Any, tmp_path: Path) -> None:
    """To the bit, with dropout, in the middle of an epoch."""
    sections = params({"micro_batches": 4}, model={"dropout": 0.3}, optimizer=FULL)
    whole = play("MLP", 2, steps=6, evaluates=True, params=sections)[0]
    first = play("MLP", 2, steps=2, save=str(tmp_path / "state"), params=sections)[0]
    rest = play("MLP", 2, steps=4, load=str(tmp_path / "state"), evaluates=True, params=sections)[0]
    assert first["losses"] + rest["losses"] == whole["losses"]
    assert rest["weights"] == whole["weights"]
    assert rest["evaluation"] == whole["evaluation"]
    assert not any("random draws" in note for note in rest["notes"])


def test_a_run_moves_between_modes_and_numbers_of_stages(play: Any, tmp_path: Path) -> None:
    adam = {"optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.01}}
    one = play("TiedModules", 1, pipelined=False, steps=4, params=params(**adam))[0]
    states = [str(tmp_path / str(number)) for number in range(3)]
    play("TiedModules", 2, steps=1, save=states[0], params=params({"micro_batches": 4}, **adam))
    three = {"micro_batches": 3, "schedule": "gpipe"}
    moved = play("TiedModules", 3, steps=1, load=states[0], save=states[1], params=params(three, **adam))[0]
    assert any("random draws such as dropout will differ" in note for note in moved["notes"])
    play("TiedModules", 1, pipelined=False, steps=1, load=states[1], save=states[2], params=params(**adam))
    last = play("TiedModules", 2, steps=1, load=states[2], params=params({"micro_batches": 4}, **adam))[0]
    assert differ({"weights": one["weights"], "losses": one["losses"][-1:]}, last) < 1e-12


def test_evaluation_alone(play: Any) -> None:
    one = play("MLP", 1, pipelined=False, mode="eval", steps=0, evaluates=True, params=params())[0]
    for pipeline in ({}, {"replicas": 2}):
        two = play("MLP", 2, mode="eval", steps=0, evaluates=True, params=params(pipeline))
        assert two[0]["evaluation"] == pytest.approx(one["evaluation"], abs=1e-12)
        assert two[1]["evaluation"] == two[0]["evaluation"]


@pytest.mark.parametrize(
    ("model", "size", "sections", "message"),
    [
        ("MLP", 2, {"pipeline": {"stages": 3}}, "= 3 processes, and 2 processes were started"),
        ("MLP", 2, {"pipeline": {"micro_batches": 9}}, "micro_batches is 9, and a batch has 8 samples"),
        (
            "MLP",
            2,
            {"pipeline": {"micro_batches": 1}},
            "1f1b does not take with 2 stages. Set micro_batches: 2.",
        ),
        ("MLP", 2, {"pipeline": {"cuts": ["nope"]}}, "'nope' is no module"),
        ("Frozen", 5, {}, "can be cut into at most 4 stages, and 5 were asked for"),
        ("MLP", 2, {"compile": True}, "runconfig.compile is on"),
    ],
)
def test_refusals_on_every_process(
    play: Any, model: str, size: int, sections: dict[str, Any], message: str
) -> None:
    results = play(model, size, params={"runconfig": sections})
    assert len(results) == size
    for result in results:
        assert result["error"][0] in ("UserError", "OtherProcessFailed")
        assert message in result["error"][1]


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        (
            2,
            {"replicas": 3},
            "replicas is 3, and 2 processes were started. Start stages * replicas processes.",
        ),
        (1, {"stages": 2}, "1 process was started. Start 2 processes"),
        (4, {"stages": 1, "replicas": 2}, "asks for 1 stages * 2 replicas = 2 processes, and 4"),
        (2, {"schedule": "1f1"}, "schedule is '1f1'. Did you mean '1f1b'?"),
        (
            2,
            {"cuts": ["a", "b"]},
            "makes 3 pieces of the model, and 2 stages under 1f1b take 2. Give 1 cut(s)",
        ),
        (2, {"cuts": ["a"], "schedule": "looped_bfs"}, "take 4 or another multiple"),
        (2, {"cuts": list("abcde"), "schedule": "dualpipev"}, "makes 6 pieces"),
    ],
)
def test_layouts_that_do_not_fit_the_processes(size: int, options: dict[str, Any], message: str) -> None:
    given = {"stages": None, "replicas": 1, "schedule": "1f1b", "cuts": None, **options}
    with pytest.raises(UserError) as caught:
        make_layout(SimpleNamespace(**given), SimpleNamespace(size=size, rank=0))  # type: ignore[arg-type]
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "pieces"),
    [("1f1b", [[0], [1]]), ("looped_bfs", [[0, 2], [1, 3]]), ("dualpipev", [[0, 3], [1, 2]])],
)
def test_pieces_lie_where_the_schedule_wants_them(schedule: str, pieces: list[list[int]]) -> None:
    layouts = [Layout(2, 2, len(pieces[0]), schedule, rank) for rank in range(4)]
    assert [layout.own_pieces for layout in layouts] == pieces * 2
    assert [layout.replica for layout in layouts] == [0, 0, 1, 1]
    assert [layout.holds_loss for layout in layouts[:2]] == [schedule == "dualpipev", schedule != "dualpipev"]
    assert layouts[3].ranks_of([1]) == [1, 3]


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("reads", "UserError", "pipelined_models.py:"),
        ("counts", "UserError", "self.num_calls of Broken changes in a step"),
        ("nan", "NonFiniteError", "the loss is nan at step 1: stage 0 (process 0): pipelined_models.py:"),
    ],
)
def test_models_that_break_are_told_of_by_name(play: Any, how: str, kind: str, message: str) -> None:
    for result in play("Broken", 2, params={"model": {"how": how}}):
        assert result["error"][0] == kind
        assert message in result["error"][1]


def test_a_layer_that_overflows_is_named_before_its_update(play: Any) -> None:
    """The rate is far too high: a later step's loss is not finite, and the error says which stage's what."""
    sgd = {"optimizer_type": "SGD", "learning_rate": 1e30}
    results = play("UNet", 2, steps=5, params={"optimizer": sgd})
    for result in results:
        assert result["error"] == results[0]["error"]
        assert result["error"][0] == "NonFiniteError"
        assert "stage " in result["error"][1]
        assert "(process " in result["error"][1]
