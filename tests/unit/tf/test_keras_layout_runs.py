"""A Keras script and its layout train in one process, with the same losses."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from portwright.errors import UnsupportedError, UserError
from portwright.port.api import port
from portwright.tensorflow import run
from portwright.tensorflow.keras_parts import compute_loss, compute_metrics, make_train_op, name_outputs

v1 = tf.compat.v1
FOLDER = Path(__file__).parents[2] / "fixtures" / "keras_layout"
FILES = ("model", "data", "utils")


@pytest.fixture
def layout(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Any]]:
    """The files of a script's layout, imported as run.py imports them."""
    script = FOLDER / f"{request.param}.py"
    out = tmp_path / "ported"
    result = port([script], ["csx"], style="layout", out=out)
    assert {Path(name).name for name in result.changed} == {
        "model.py", "data.py", "utils.py", "run.py", "params.yaml",
    }  # fmt: skip
    sys.path.insert(0, str(out))
    for name in FILES:
        sys.modules.pop(name, None)
    try:
        yield out, {name: importlib.import_module(name) for name in FILES}
    finally:
        sys.path.remove(str(out))
        for name in FILES:
            sys.modules.pop(name, None)


class Batches(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """The loss of each batch, out of the means that fit() tells."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.total = 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        before = 0.0 if batch == 0 else self.total
        self.total = logs["loss"] * (batch + 1)
        self.losses.append(self.total - before)


def losses_of_script(script: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[Any]]:
    """The losses of fit(), and what evaluate() says of its validation data afterwards, where they are arrays."""
    batches, evaluated = Batches(), []
    fit = tf.keras.Model.fit

    def watched(model: Any, *args: Any, **kwargs: Any) -> Any:
        ours = [c for c in kwargs.pop("callbacks", ()) if "Checkpoint" not in type(c).__name__]
        history = fit(model, *args, callbacks=[*ours, batches], **{**kwargs, "verbose": 0})
        if isinstance(kwargs.get("validation_data"), tuple):
            evaluated.extend(model.evaluate(*kwargs["validation_data"], verbose=0))
        return history

    with monkeypatch.context() as patch:
        patch.setattr(tf.keras.Model, "fit", watched)
        patch.setattr(sys, "argv", [str(script)])
        runpy.run_path(str(script), run_name="__main__")
    return batches.losses, evaluated


def train(out: Path, modules: Any, *words: str) -> Any:
    arguments = ["CPU", *words, "--params", str(out / "configs/params.yaml"), "--model_dir", str(out / "run")]
    evaluation = getattr(modules["data"], "eval_input_fn", None)
    return run(
        modules["model"].model_fn,
        modules["data"].train_input_fn,
        evaluation,
        modules["utils"].set_defaults,
        argv=arguments,
    )


@pytest.mark.parametrize("layout", ["sequential", "functional", "subclass", "outputs"], indirect=True)
def test_losses_are_those_of_fit(
    layout: tuple[Path, Any], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, modules = layout
    script = FOLDER / f"{request.node.callspec.params['layout']}.py"
    losses, evaluated = losses_of_script(script, monkeypatch)
    assert len(losses) > 3
    train(out, modules, "--mode", "train")
    rows = [json.loads(line) for line in (out / "run/train/metrics.jsonl").read_text().splitlines()]
    ours = [loss for row in rows for loss in row["losses"]]
    assert len(ours) == len(losses)
    np.testing.assert_allclose(ours, losses, rtol=3e-5)
    assert ours[0] != ours[-1]
    if evaluated:
        loss, accuracy = evaluated
        told = train(out, modules, "--mode", "eval")
        assert told["values"]["eval/accuracy"] == pytest.approx(accuracy, abs=1e-6)
        assert told["values"]["eval/loss"] == pytest.approx(loss, rel=1e-4)


OPTIMIZERS = {
    "SGD": {"learning_rate": 0.1, "momentum": 0.9},
    "Adam": {"learning_rate": 0.01, "eps": 1e-7, "max_gradient_value": 0.01},
    "AdamW": {"learning_rate": 0.01, "eps": 1e-7, "weight_decay_rate": 0.1},
    "RMSprop": {"learning_rate": 0.01, "alpha": 0.9, "eps": 1e-7, "momentum": 0.5, "centered": True},
    "Adagrad": {"learning_rate": 0.1, "initial_accumulator_value": 0.1, "eps": 1e-7},
    "Adadelta": {"learning_rate": 1.0, "rho": 0.95, "eps": 1e-7},
    "Adamax": {"learning_rate": 0.01, "eps": 1e-7},
}
THEIRS = {
    "eps": "epsilon",
    "alpha": "rho",
    "weight_decay_rate": "weight_decay",
    "max_gradient_value": "clipvalue",
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_updates_are_those_of_keras(kind: str) -> None:
    """Also of an embedding, whose gradient has some rows only."""
    section = {"beta1": 0.9, "beta2": 0.999} if kind.startswith("Adam") else {}
    section |= OPTIMIZERS[kind]
    theirs = {THEIRS.get(key, key): value for key, value in OPTIMIZERS[kind].items()}
    rows = np.array([0, 2, 2, 1])
    start = np.arange(8, dtype=np.float32).reshape(4, 2) / 7 - 0.4

    def loss_of(table: Any) -> Any:
        return tf.reduce_sum(tf.square(tf.gather(table, rows) - 0.3) * [[1.0], [2.0], [3.0], [0.1]])

    table = tf.Variable(start)
    optimizer = getattr(tf.keras.optimizers, kind)(**theirs)
    expected = []
    for _ in range(4):
        with tf.GradientTape() as tape:
            loss = loss_of(table)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        expected.append(table.numpy())
    with tf.Graph().as_default():
        variable = v1.get_variable("table", initializer=tf.constant(start))
        step = make_train_op(loss_of(variable), {"optimizer_type": kind, **section})
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for values in expected:
                session.run(step)
                np.testing.assert_allclose(session.run(variable), values, rtol=2e-5, atol=1e-6)
            assert session.run(v1.train.get_global_step()) == 4


def test_unknown_names_tell_the_valid_ones() -> None:
    with tf.Graph().as_default():
        labels, outputs = tf.constant([1.0, 2.0]), tf.constant([[1.0], [3.0]])
        with pytest.raises(UserError, match="no loss 'mean_squard_error'"):
            compute_loss("mean_squard_error", labels, outputs)
        with pytest.raises(UserError, match="no metric 'acuracy'"):
            compute_metrics(["acuracy"], labels, outputs)
        with pytest.raises(UserError, match="the loss is 3"):
            compute_loss(3, labels, outputs)
        with pytest.raises(UserError, match=r"metrics names the output 'flg'.*'flag'"):
            compute_metrics({"flg": "mae"}, labels, {"flag": outputs, "value": outputs})
        with pytest.raises(UnsupportedError, match=r"MeanIoU of tf.keras has no form"):
            compute_metrics([tf.keras.metrics.MeanIoU(2)], labels, outputs)
        with pytest.raises(UserError, match="'Ftrl'"):
            make_train_op(tf.constant(1.0), {"optimizer_type": "Ftrl", "learning_rate": 0.1})
        with pytest.raises(UserError, match="no trainable variable"):
            make_train_op(tf.constant(1.0), {"optimizer_type": "SGD", "learning_rate": 0.1})


@pytest.mark.parametrize(
    "metric",
    [
        "mae",
        "binary_accuracy",
        tf.keras.metrics.AUC(),
        tf.keras.metrics.Precision(),
        tf.keras.metrics.RootMeanSquaredError(),
    ],
    ids=lambda m: m if isinstance(m, str) else m.name,
)
def test_metrics_are_those_of_keras(metric: Any) -> None:
    rng = np.random.default_rng(0)
    labels, outputs = rng.integers(0, 2, 64).astype(np.float32), rng.random((64, 1)).astype(np.float32)
    long = {"mae": tf.keras.metrics.MeanAbsoluteError, "binary_accuracy": tf.keras.metrics.BinaryAccuracy}
    theirs = long[metric]() if isinstance(metric, str) else type(metric)()
    theirs.update_state(labels[:, None], outputs)
    expected = float(theirs.result())
    with tf.Graph().as_default():
        made = compute_metrics([metric], tf.constant(labels), tf.constant(outputs))
        ((value, update),) = made.values()
        with v1.Session() as session:
            session.run([v1.local_variables_initializer(), v1.global_variables_initializer()])
            session.run(update)
            assert float(session.run(value)) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(
    "metrics",
    [
        ["mae", "mse"],
        {"flag": "accuracy", "value": ["mae", "mse"]},
        {"value": "mae"},
        [["mae"], ["accuracy"]],
        "mse",
    ],
    ids=str,
)
def test_metrics_of_several_outputs_are_those_of_keras(metrics: Any) -> None:
    inputs = tf.keras.Input((3,))
    value = tf.keras.layers.Dense(1, name="value")(inputs)
    flag = tf.keras.layers.Dense(1, activation="sigmoid", name="flag")(inputs)
    model = tf.keras.Model(inputs, [value, flag])
    model.compile("sgd", loss="mse", metrics=metrics)
    rng = np.random.default_rng(1)
    x, y = rng.random((16, 3)).astype(np.float32), rng.random(16).astype(np.float32)
    labels = {"value": y, "flag": (y > 0.5).astype(np.float32)}
    expected = {
        name: number
        for name, number in model.evaluate(x, labels, verbose=0, return_dict=True).items()
        if not name.endswith("loss")
    }
    arrays = [part.numpy() for part in model(x)]
    with tf.Graph().as_default():
        outputs = name_outputs(model, [tf.constant(part) for part in arrays])
        made = compute_metrics(metrics, {k: tf.constant(v) for k, v in labels.items()}, outputs)
        assert sorted(made) == sorted(expected)
        with v1.Session() as session:
            session.run(v1.local_variables_initializer())
            session.run([update for _, update in made.values()])
            for name, (result, _) in made.items():
                assert float(session.run(result)) == pytest.approx(expected[name], rel=1e-5)


def test_outputs_without_names_are_numbered_as_keras_numbers_them() -> None:
    parts = [tf.constant([[1.0]]), tf.constant([[2.0]])]
    assert list(name_outputs(None, parts)) == ["output_1", "output_2"]
    assert name_outputs(None, parts[:1]) is parts[0]
    assert name_outputs(None, parts[0]) is parts[0]
    labels = {"output_1": tf.constant([[1.0]]), "output_2": tf.constant([[4.0]])}
    losses = {"output_1": "mae", "output_2": "mse"}
    assert float(compute_loss(losses, labels, name_outputs(None, parts))) == pytest.approx(4.0)
