from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from warm_python import WarmPython

from portwright.errors import UserError
from portwright.graph.plans.request import Request, framework_of

RUN = """
{imports}
from portwright.tensorflow import run

from model import model_fn


def input_fn(params, mode):
    data = (tf.zeros([64, 8]), tf.zeros([64], tf.int32))
    size = params["train_input"]["batch_size"]
    return tf.data.Dataset.from_tensor_slices(data).batch(size, drop_remainder=True)


if __name__ == "__main__":
    run(model_fn, input_fn)
    raise AssertionError("run() came back")
"""
MODEL = """
import tensorflow as tf
from portwright.tensorflow import EstimatorSpec


def model_fn(features, labels, mode, params):
    features = features["x"] if isinstance(features, dict) else features
    print("the user's own words")
    hidden = tf.keras.layers.Dense(params["model"]["width"], activation="relu")(features)
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.keras.layers.Dense(10)(hidden))
    )
    step = tf.compat.v1.train.get_global_step()
    return EstimatorSpec(mode, loss=loss, train_op=tf.compat.v1.train.AdamOptimizer(0.1).minimize(loss, step))
"""
PARAMS = "train_input: {batch_size: 8}\nmodel: {width: 16}\noptimizer: {optimizer_type: Adam, learning_rate: 0.1}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "mymodel"
    (made / "configs").mkdir(parents=True)
    (made / "run.py").write_text(RUN.format(imports="import tensorflow as tf"))
    (made / "model.py").write_text(MODEL)
    (made / "configs" / "params.yaml").write_text(PARAMS)
    return made


Command = Callable[..., Any]


@pytest.fixture
def command(warm_tensorflow: WarmPython, tmp_path: Path) -> Command:
    """`portwright plan` in a process of its own, which says last whether it has torch."""
    script = "import sys\nfrom portwright.__main__ import main\ntry:\n    main()\nfinally:\n    print('torch' in sys.modules, file=sys.stderr)"
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}

    def run(*words: str, cwd: Path = tmp_path) -> Any:
        return warm_tensorflow.run(("plan", *words), cwd, env, 300, ("-c", script))

    return run


def test_a_folder_is_planned_without_torch(folder: Path, command: Command) -> None:
    done = command(
        str(folder), "--target", "csx", "--json", "-D", "model.width=32", "--batch-size", "16", "--out", "plan", cwd=folder
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["framework"] == "tensorflow"
    assert plan["parameters"] == 8 * 32 + 32 + 32 * 10 + 10
    assert plan["batch_size"] == 16
    assert plan["optimizer"] == "Adam"
    assert {Path(op["places"][0]["file"]).name for op in plan["ops"] if op["places"]} == {"model.py"}
    assert sorted(path.name for path in (folder / "plan").iterdir())[:2] == [
        "deltat_estimate.json",
        "key_metrics.json",
    ]
    assert "the user's own words" in done.stderr
    assert done.stderr.rstrip().endswith("False")  # torch was not imported


def test_a_model_function_is_planned_from_a_described_batch(folder: Path, command: Command) -> None:
    params = str(folder / "configs" / "params.yaml")
    inputs = ("--input", "x:float32[4,8]", "--input", "labels:int32[4]")
    done = command(
        f"{folder / 'model.py'}:model_fn", "--target", "csx", "--params", params, *inputs, "--json"
    )
    assert done.returncode == 0, done.stderr
    assert [tensor["name"] for tensor in json.loads(done.stdout)["inputs"]] == ["x", "labels"]


def test_the_framework_is_known_by_what_the_files_import(folder: Path, tmp_path: Path) -> None:
    assert framework_of(Request(str(folder))) == "tensorflow"
    (folder / "run.py").write_text("from model import model_fn\n")
    assert framework_of(Request(str(folder))) == "tensorflow"
    (tmp_path / "net.py").write_text("import torch\n")
    assert framework_of(Request(f"{tmp_path / 'net.py'}:Net")) == "pytorch"
    (tmp_path / "broken.py").write_text("def (:\n")
    assert framework_of(Request(str(tmp_path / "broken.py"))) == "pytorch"
    assert framework_of(Request("fc_mnist")) == "pytorch"
    assert framework_of(Request("tensorflow/fc_mnist")) == "tensorflow"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("FOLDER", optimizer="SGD"), "makes its own"),
        (Request("FOLDER", batch_size=0), "--batch-size is 0"),
        (Request("FOLDER", params=Path("missing.yaml")), "no params file"),
        (Request("FOLDER/model.py:model_fn"), "no input function"),
        (Request("FOLDER/model.py:model_f", inputs=("x:float32[4,8]",)), "has no 'model_f'"),
    ],
)
def test_what_cannot_be_planned_is_said(
    request_: Request, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    from portwright.planning.tensorflow_subject import load_step

    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(UserError, match=words):
        load_step(dataclasses.replace(request_, path=request_.path.replace("FOLDER", str(folder))))


def test_the_twin_of_fc_mnist_agrees(command: Command) -> None:
    """Two frameworks, one network: weights, work and verdict are those of the other plan."""
    ours, twin = (
        json.loads(command(name, "--target", "csx", "--json").stdout)
        for name in ("tensorflow/fc_mnist", "fc_mnist")
    )
    for key in (
        "parameters",
        "trained_parameters",
        "batch_size",
        "supported",
        "fits",
        "mode",
        "estimated_deltat",
    ):
        assert ours[key] == twin[key], key
    assert ours["flops"]["forward"]["products"] == twin["flops"]["forward"]["products"]
    assert ours["flops"]["backward"]["products"] == twin["flops"]["backward"]["products"]
    assert ours["flops_per_sample"] == pytest.approx(twin["flops_per_sample"], rel=0.02)
    assert ours["memory_bytes"]["optimizer"] == twin["memory_bytes"]["optimizer"]
    assert ours["memory_bytes"]["weights"] == twin["memory_bytes"]["weights"]
    assert ours["total_utilization"] == pytest.approx(twin["total_utilization"], rel=1e-3)
    assert set(ours) == set(twin)
