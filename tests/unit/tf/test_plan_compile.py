from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from unit.tf.plan_models import capture_net, layers, make_input_fn, make_model_fn, mlp

from portwright.errors import UnsupportedError, UserError
from portwright.graph.plans.request import PlanOptions, parse_targets
from portwright.tensorflow import CerebrasEstimator
from portwright.tensorflow.planning.plan import TensorFlowSubject, compile_step, plan_step


def make_estimator(folder: Path, net: Any = mlp, **options: Any) -> CerebrasEstimator:
    return CerebrasEstimator(make_model_fn(net), model_dir=str(folder / "model_dir"), **options)


def test_compile_writes_the_plan_and_runs_nothing(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, compile_dir=str(tmp_path / "out"))
    lines: list[str] = []
    planned = compile_step(estimator, make_input_fn(), note=lines.append)

    assert planned.is_good
    assert lines[0].startswith(
        "CSX, planned only (today's SDK of Cerebras has no TensorFlow): supported on CS-2"
    )
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {
        "plan.json",
        "key_metrics.json",
        "plan.html",
        "wafer.svg",
        "memory.svg",
        "deltat_estimate.json",
    }
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert plan["framework"] == "tensorflow"
    assert plan["parameters"] == 314
    assert plan["batch_size"] == 4
    assert plan["optimizer"] == "SGD"
    assert plan["info"]["tensorflow"] == tf.__version__
    assert {op["op"] for op in plan["ops"]} >= {"tf.MatMul", "tf.BiasAdd"}
    assert plan["ops"][0]["places"][0]["file"].endswith("plan_models.py")
    answers = json.loads((tmp_path / "out" / "key_metrics.json").read_text())["answers"]
    assert answers["parameters"]["value"] == 314
    assert answers["sample_bytes"]["value"] == 8 * 4 + 4
    assert "plan_models.py" in (tmp_path / "out" / "plan.html").read_text()
    assert not (tmp_path / "model_dir").exists() or not list((tmp_path / "model_dir").iterdir())


def test_validate_only_writes_nothing_and_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_estimator(tmp_path).compile(make_input_fn(), validate_only=True)
    assert "CSX, planned only" in capsys.readouterr().out
    assert not (tmp_path / "model_dir" / "compile").exists()


def test_a_refused_step_is_unsupported_with_its_line(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, lambda x: layers.Dense(10)(layers.LSTM(4)(x)))
    with pytest.raises(UnsupportedError, match=r"test_plan_compile\.py:\d+: tf\.While") as error:
        compile_step(estimator, make_input_fn((4, 3, 8)), note=lambda line: None)
    assert "unroll=True" in error.value.cure
    assert len(error.value.details["refused"]) == 1
    assert (tmp_path / "model_dir" / "compile" / "plan.json").is_file()  # what is wrong can be looked at


def test_an_unknown_batch_size_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="batch size"):
        make_estimator(tmp_path).compile(make_input_fn(drop=False))
    assert not (tmp_path / "model_dir" / "compile").exists()


def test_the_published_network_has_the_published_numbers(tmp_path: Path) -> None:
    """fc_mnist of model zoo 1.6 for PyTorch, whose compile is public, written in TensorFlow."""

    def net(x: Any) -> Any:
        for _ in range(10):
            x = layers.Dense(50, activation="relu")(x)
        return layers.Dense(10)(x)

    planned = compile_step(
        make_estimator(tmp_path, net), make_input_fn((256, 784)), validate_only=True, note=lambda line: None
    )
    document = planned.as_json()
    assert document["total_utilization"] == pytest.approx(0.0588006479419213, rel=1e-3)
    assert document["estimated_deltat"] == 674


def test_targets_without_a_table_are_said_not_guessed() -> None:
    subject = TensorFlowSubject("mlp", lambda: capture_net(mlp))
    with pytest.raises(UserError, match="no table of TensorFlow ops for IPU, RDU"):
        plan_step(subject, PlanOptions(parse_targets("ipu,rdu")))
    planned = plan_step(subject, PlanOptions(parse_targets("all")))
    assert set(planned.plans) == {"cpu", "csx", "gpu"}
    assert any("IPU, RDU: left out" in note for note in planned.plans["csx"].notes)
    assert planned.plans["gpu"].report.label == "whatever TensorFlow runs here, it runs"


def test_legal_forms_are_torchs() -> None:
    with pytest.raises(UserError, match="--legalise"):
        plan_step(
            TensorFlowSubject("mlp", lambda: capture_net(mlp)),
            PlanOptions(parse_targets("csx"), legalise=True),
        )


def test_a_large_model_takes_no_memory_for_its_weights() -> None:
    """Forty billion weights: were any of them made, this test would not end."""

    def net(x: Any) -> Any:
        for _ in range(4):
            x = layers.Dense(100_000, use_bias=False)(x)
        return layers.Dense(10)(x)

    planned = plan_step(
        TensorFlowSubject("large", lambda: capture_net(net, (4, 100_000))), PlanOptions(parse_targets("csx"))
    )
    plan = planned.plans["csx"]
    assert plan.graph.num_parameters == 4 * 10**10 + 1_000_010
    assert plan.fit.mode == "weight_streaming"
    assert plan.memory.weights == 4 * plan.graph.num_parameters
