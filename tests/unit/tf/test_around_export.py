"""Saved models: what they hold, what they compute, and what cannot be exported."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import portwright.tensorflow as pt
from portwright.errors import UserError
from portwright.tensorflow import experimental, export
from portwright.tensorflow.saved_model import export_all_saved_models, export_saved_model

v1 = tf.compat.v1


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    table = tf.lookup.StaticHashTable(
        tf.lookup.TextFileInitializer(WORDS["path"], tf.string, 0, tf.int64, 1, delimiter=" "), -1
    )
    weight = v1.get_variable("weight", [2, 1], initializer=v1.ones_initializer())
    predicted = tf.matmul(features["x"], weight)
    predictions = {"y": predicted, "word": table.lookup(tf.constant(["b"]))}
    if mode == "infer":
        outputs = {
            "serving_default": export.RegressionOutput(predicted),
            "all": export.PredictOutput(predictions),
        }
        return pt.EstimatorSpec(mode, predictions, export_outputs=outputs)
    loss = tf.reduce_mean(tf.math.squared_difference(predicted, labels))
    if mode == "eval":
        return pt.EstimatorSpec(mode, predictions, loss, eval_metric_ops={"mean": v1.metrics.mean(predicted)})
    step = v1.train.AdamOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    return pt.EstimatorSpec(mode, predictions, loss, step)


WORDS: dict[str, str] = {}
X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def input_fn() -> Any:
    return tf.data.Dataset.from_tensors(({"x": X}, X[:, :1])).repeat()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("trained")
    WORDS["path"] = str(folder / "words.txt")
    Path(WORDS["path"]).write_text("a 3\nb 4\n")
    estimator = pt.Estimator(model_fn, str(folder / "model"), pt.RunConfig(log_step_count_steps=None))
    return estimator.train(input_fn, steps=3)


def raw_fn() -> Any:
    return export.build_raw_serving_input_receiver_fn({"x": tf.ones([1, 2])})()


def parsing_fn() -> Any:
    return export.build_parsing_serving_input_receiver_fn({"x": tf.io.FixedLenFeature([2], tf.float32)})()


def test_a_raw_receiver_feeds_what_it_can_and_leaves_the_rest_out(trained: Any, tmp_path: Path) -> None:
    path = trained.export_saved_model(str(tmp_path), raw_fn)
    assert isinstance(path, bytes)
    assert len(Path(path.decode()).name) == 10
    assert [entry.name for entry in tmp_path.iterdir()] == [Path(path.decode()).name]  # no temp- left
    loaded = tf.saved_model.load(path.decode())
    assert list(loaded.signatures) == ["all"]  # a regression takes serialized examples
    found = loaded.signatures["all"](x=tf.constant(X))
    expected = next(iter(trained.predict(input_fn, yield_single_examples=False)))
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-6)
    assert found["word"].numpy().tolist() == [4]  # the table's file travels with the model


def test_a_parsing_receiver(trained: Any, tmp_path: Path) -> None:
    path = trained.export_saved_model(str(tmp_path), parsing_fn, as_text=True).decode()
    assert (Path(path) / "saved_model.pbtxt").exists()
    feature = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0]))
    example = tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString()
    loaded = tf.saved_model.load(path)
    found = loaded.signatures["serving_default"](tf.constant([example]))["outputs"]
    np.testing.assert_allclose(found, X[:1] @ trained.get_variable_value("weight"), rtol=1e-6)


def test_all_modes_in_one_model(trained: Any, tmp_path: Path) -> None:
    receiver = experimental.build_raw_supervised_input_receiver_fn({"x": tf.ones([1, 2])}, tf.ones([1, 1]))
    modes = {"train": receiver, "eval": receiver, "infer": raw_fn}
    path = trained.experimental_export_all_saved_models(str(tmp_path), modes).decode()
    with tf.Graph().as_default(), v1.Session() as session:
        graph = v1.saved_model.load(session, ["train"], path)
        outputs = graph.signature_def["train"].outputs
        feed = {
            graph.signature_def["train"].inputs["x"].name: X,
            graph.signature_def["train"].inputs["label"].name: X[:, :1],
        }
        train_op = v1.get_default_graph().get_operation_by_name("Adam")
        before = session.run(outputs["loss"].name, feed)
        session.run(train_op, feed)
        assert session.run(outputs["loss"].name, feed) < before
    with tf.Graph().as_default(), v1.Session() as session:
        graph = v1.saved_model.load(session, ["eval"], path)
        outputs = graph.signature_def["eval"].outputs
        assert {"loss", "predictions/y", "metrics/mean/value", "metrics/mean/update_op"} <= set(outputs)
        session.run(outputs["metrics/mean/update_op"].name, feed)
        assert session.run(outputs["metrics/mean/value"].name) == pytest.approx(
            float(np.mean(X @ trained.get_variable_value("weight")))
        )
    assert set(tf.saved_model.load(path, ["serve"]).signatures) == {"all"}


def test_exports_within_a_second_get_names_in_order(trained: Any, tmp_path: Path) -> None:
    paths = [trained.export_saved_model(str(tmp_path), raw_fn) for _ in range(3)]
    assert paths == sorted(paths)
    assert len(set(paths)) == 3


def test_extra_assets_and_another_checkpoint(trained: Any, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello")
    first = trained.export_saved_model(
        str(tmp_path / "out"),
        raw_fn,
        assets_extra={"sub/note.txt": str(tmp_path / "note.txt")},
        checkpoint_path=f"{trained.model_dir}/model.ckpt-0",
    ).decode()
    assert (Path(first) / "assets.extra/sub/note.txt").read_text() == "hello"
    found = tf.saved_model.load(first).signatures["all"](x=tf.constant(X))["y"]
    np.testing.assert_allclose(found, X.sum(axis=1, keepdims=True))  # the weights were ones


def test_a_failure_leaves_nothing_behind(trained: Any, tmp_path: Path) -> None:
    def broken() -> Any:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        trained.export_saved_model(str(tmp_path / "out"), broken)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_a_model_with_other_variables_is_refused(trained: Any, tmp_path: Path) -> None:
    def other(features: Any, mode: str) -> Any:
        return pt.EstimatorSpec(mode, features["x"] * v1.get_variable("other", []))

    estimator = pt.Estimator(other, trained.model_dir, pt.RunConfig(log_step_count_steps=None))
    with pytest.raises(UserError, match="lacks variables"):
        estimator.export_saved_model(str(tmp_path), raw_fn)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e, t: export_saved_model(e, t, None), "serving_input_receiver_fn is None"),
        (lambda e, t: export_saved_model(e, t, raw_fn, checkpoint_path=f"{t}/model.ckpt-9"), "no checkpoint"),
        (lambda e, t: export_saved_model(e, t, raw_fn, assets_extra={"a": f"{t}/gone"}), "does not exist"),
        (lambda e, t: export_saved_model(e, t, raw_fn, experimental_mode="predict"), "no mode to export"),
        (lambda e, t: export_all_saved_models(e, t, {}), "no mode to export"),
        (lambda e, t: pt.Estimator(model_fn, f"{t}/new").export_saved_model(t, raw_fn), "Train first"),
        (lambda e, t: export.ServingInputReceiver(None, tf.ones([1])), "features is None"),
        (lambda e, t: export.ServingInputReceiver({"a": 3}, tf.ones([1])), "'a' is a int"),
        (
            lambda e, t: export.ServingInputReceiver({1.5: tf.ones([1])}, tf.ones([1])),
            "key of features is 1.5",
        ),
        (
            lambda e, t: export.ServingInputReceiver(tf.ones([1]), {3: tf.ones([1])}),
            "key of receiver_tensors is 3",
        ),
        (lambda e, t: export.ServingInputReceiver(tf.ones([1]), tf.ones([1]), [1]), "alternatives is a list"),
        (
            lambda e, t: export.TensorServingInputReceiver({"a": tf.ones([1])}, tf.ones([1])),
            "dict of features",
        ),
        (
            lambda e, t: experimental.build_raw_supervised_input_receiver_fn({"a": 1}, {"a": 1}),
            "share the keys a",
        ),
    ],
)
def test_bad_input(trained: Any, tmp_path: Path, call: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(trained, str(tmp_path))


def test_receivers_name_lone_tensors_and_keep_alternatives(trained: Any, tmp_path: Path) -> None:
    one = tf.ones([1])
    receiver = export.ServingInputReceiver(one, one, {"other": one})
    assert list(receiver.features) == ["feature"]
    assert list(receiver.receiver_tensors) == ["input"]
    assert list(receiver.receiver_tensors_alternatives["other"]) == ["input"]
    assert export.TensorServingInputReceiver(one, one).features is one

    def with_alternative() -> Any:
        examples = parsing_fn()
        alternative = {"raw": {"x": examples.features["x"]}}
        return export.ServingInputReceiver(examples.features, examples.receiver_tensors, alternative)

    path = trained.export_saved_model(str(tmp_path), with_alternative).decode()
    assert set(tf.saved_model.load(path).signatures) == {"serving_default", "all", "raw:all"}


def test_a_saved_model_warm_starts(trained: Any, tmp_path: Path) -> None:
    path = trained.export_saved_model(str(tmp_path / "out"), raw_fn).decode()
    config = pt.RunConfig(log_step_count_steps=None)
    warm = pt.Estimator(model_fn, str(tmp_path / "model"), config, warm_start_from=path)
    expected = trained.evaluate(input_fn, steps=1)
    shutil.rmtree(tmp_path / "model", ignore_errors=True)
    assert warm.evaluate(input_fn, steps=1)["loss"] == pytest.approx(expected["loss"])


def test_warm_start_settings_choose_and_rename(trained: Any, tmp_path: Path) -> None:
    def renamed(features: Any, labels: Any, mode: str) -> Any:
        weight = v1.get_variable("w2", [2, 1], initializer=v1.zeros_initializer())
        bias = v1.get_variable("bias", [], initializer=v1.zeros_initializer())
        return pt.EstimatorSpec(mode, tf.matmul(features["x"], weight) + bias)

    settings = pt.WarmStartSettings(trained.model_dir, "w2", var_name_to_prev_var_name={"w2": "weight"})
    estimator = pt.Estimator(renamed, str(tmp_path), pt.RunConfig(), warm_start_from=settings)
    found = np.stack(list(estimator.predict(lambda: tf.data.Dataset.from_tensors({"x": X}))))
    np.testing.assert_allclose(found, X @ trained.get_variable_value("weight"), rtol=1e-6)


def test_bad_warm_starts() -> None:
    with pytest.raises(UserError, match="warm_start_from is a int"):
        pt.Estimator(model_fn, warm_start_from=3)
    with pytest.raises(UserError, match="ckpt_to_initialize_from is ''"):
        pt.WarmStartSettings("")
