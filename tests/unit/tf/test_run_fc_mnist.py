"""fc_mnist for TensorFlow is the twin of the PyTorch one: the same data, the same params, and equal results."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from portwright.discover import find_models
from portwright.errors import UserError
from portwright.tensorflow import ModeKeys


def load(framework: str, file: str) -> ModuleType:
    name = f"{framework}_fc_mnist_{file}"
    spec = importlib.util.spec_from_file_location(name, find_models(framework)["fc_mnist"] / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def params_of(framework: str) -> dict[str, Any]:
    folder = find_models(framework)["fc_mnist"]
    params: dict[str, Any] = load(framework, "utils").get_params(folder / "configs" / "params.yaml")
    return params


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_data_are_the_same(split: str) -> None:
    images, labels = load("tensorflow", "data").read_digits(split)
    torch_images, torch_labels = load("pytorch", "data").read_digits(split)
    np.testing.assert_array_equal(images[..., 0], torch_images.numpy()[:, 0])
    np.testing.assert_array_equal(labels, torch_labels.numpy())


def test_the_params_have_the_same_keys_and_values() -> None:
    ours, theirs = params_of("tensorflow"), params_of("pytorch")
    assert {section: set(values) for section, values in ours.items()} == {
        section: set(values) for section, values in theirs.items()
    }
    for section in ("model", "optimizer", "runconfig", "eval_input"):
        assert ours[section] == theirs[section]


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu", "selu", "gelu", "linear"])
def test_forward_results_are_equal_with_the_same_weights(activation: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    params = params_of("pytorch")
    params["model"] |= {"activation_fn": activation, "dropout": 0.0}
    torch.manual_seed(7)
    twin = load("pytorch", "model").MLP(params["model"]).eval()
    images = np.random.default_rng(3).standard_normal((5, 8, 8, 1)).astype(np.float32)
    with torch.no_grad():
        expected = twin(torch.from_numpy(images).permute(0, 3, 1, 2))
    weights = [parameter.detach().numpy() for parameter in twin.parameters()]
    with tf.Graph().as_default():
        logits = load("tensorflow", "model").build_mlp(
            tf.constant(images), params["model"], is_training=False
        )
        variables = tf.compat.v1.trainable_variables()
        assert [v.op.name for v in variables[:2]] == ["hidden_0/kernel", "hidden_0/bias"]
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for variable, value in zip(variables, weights, strict=True):
                variable.load(value.T, session)
            ours = session.run(logits)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_the_loss_is_the_twins() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    logits = np.random.default_rng(1).standard_normal((6, 10)).astype(np.float32)
    labels = np.array([0, 3, 9, 9, 1, 4])
    expected = torch.nn.CrossEntropyLoss()(torch.from_numpy(logits), torch.from_numpy(labels))
    model = load("tensorflow", "model")
    with tf.Graph().as_default():
        tf.compat.v1.train.create_global_step()
        model.build_mlp = lambda *_, **__: tf.Variable(logits)
        spec = model.model_fn(None, tf.constant(labels), ModeKeys.TRAIN, params_of("tensorflow"))
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            assert session.run(spec.loss) == pytest.approx(float(expected), rel=1e-6)


def test_mixed_precision_keeps_float32_weights_and_logits() -> None:
    params = {**params_of("tensorflow")["model"], "mixed_precision": True}
    with tf.Graph().as_default() as graph:
        logits = load("tensorflow", "model").build_mlp(tf.zeros([2, 8, 8, 1]), params, is_training=True)
        assert logits.dtype == tf.float32
        assert {v.dtype.base_dtype for v in tf.compat.v1.trainable_variables()} == {tf.float32}
        kinds = {op.outputs[0].dtype for op in graph.get_operations() if op.type == "MatMul"}
        assert kinds == {tf.bfloat16}


def test_an_image_of_another_size_is_refused() -> None:
    params, model = params_of("tensorflow")["model"], load("tensorflow", "model")
    with tf.Graph().as_default(), pytest.raises(UserError, match="784 pixels"):
        model.build_mlp(tf.zeros([2, 28, 28, 1]), params, is_training=False)


def test_batches_are_sharded_by_the_input_context() -> None:
    params = params_of("tensorflow")
    params["eval_input"] |= {"batch_size": 400}
    data, seen = load("tensorflow", "data"), []
    for index in range(2):
        context = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=index)
        (images, _) = next(iter(data.eval_input_fn(params, context)))
        seen.append(images.numpy())
    assert [len(part) for part in seen] == [180, 180]
    np.testing.assert_array_equal(
        np.concatenate(seen), np.concatenate([data.read_digits("test")[0][i::2] for i in range(2)])
    )
