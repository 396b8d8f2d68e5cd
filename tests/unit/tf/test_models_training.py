"""Each model trains, is evaluated and predicts, in float32 and in half precision."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from model_folder import MODELS, NAMES, load, params_of

from portwright.job.params import get_params
from portwright.tensorflow import Estimator, ModeKeys, RunConfig

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_heads": 2, "filter_size": 32, "vocab_size": 300}
CHANGES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bert", "roberta", "linformer", "gpt2", "gpt3"), SMALL),
    "gptj": SMALL | {"rotary_dim": 4},
    "t5": {
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_heads": 2,
        "encoder_num_hidden_layers": 1,
        "decoder_num_hidden_layers": 1,
        "vocab_size": 300,
    },
    "transformer": {
        "hidden_size": 16,
        "num_heads": 2,
        "filter_size": 32,
        "encoder_num_hidden_layers": 1,
        "decoder_num_hidden_layers": 1,
    },
    "unet": {"encoder_filters": [4, 8], "decoder_filters": [4]},
}
PREDICTIONS = {
    "bert": {"masked_lm_predictions", "masked_lm_positions", "next_sentence_probabilities"},
    "roberta": {"masked_lm_predictions", "masked_lm_positions"},
    "linformer": {"masked_lm_predictions", "masked_lm_positions"},
    "gpt2": {"next_tokens", "probabilities"},
    "gpt3": {"next_tokens", "probabilities"},
    "gptj": {"next_tokens", "probabilities"},
    "t5": {"next_tokens"},
    "transformer": {"next_tokens"},
    "unet": {"classes", "probabilities"},
}
METRICS = {
    "bert": {"eval/mlm_accuracy", "eval/mlm_perplexity", "eval/nsp_accuracy"},
    "roberta": {"eval/mlm_accuracy", "eval/mlm_perplexity"},
    "linformer": {"eval/mlm_accuracy", "eval/mlm_perplexity"},
    **{
        name: {"eval/accuracy", "eval/lm_perplexity"}
        for name in ("gpt2", "gpt3", "gptj", "t5", "transformer")
    },
    "unet": {"eval/accuracy", "eval/dice", "eval/mean_iou", "eval/mean_per_class_accuracy"},
}


PRODUCTS = ("MatMul", "BatchMatMulV2", "Conv2D")


class Losses(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    def __init__(self) -> None:
        self.seen: list[float] = []

    def before_run(self, run_context: Any) -> Any:
        (loss,) = tf.compat.v1.get_collection("tested_loss")
        return tf.compat.v1.train.SessionRunArgs(loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen.append(float(run_values.results))


def small_params(model: str, **model_changes: Any) -> dict[str, Any]:
    params = params_of(model, model=CHANGES[model] | model_changes)
    for section in ("train_input", "eval_input"):
        params[section] |= {"batch_size": 8, "num_samples": 160}
    params["optimizer"] = {"optimizer_type": "Adam", "learning_rate": 0.01}
    return params


def model_fn_of(model: str) -> Any:
    made = load(model, "model").model_fn

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        spec = made(features, labels, mode, params)
        tf.compat.v1.add_to_collection("tested_loss", spec.loss)
        return spec

    return model_fn


@pytest.mark.parametrize("model", NAMES)
def test_loss_falls_and_what_was_trained_is_evaluated_and_predicts(model: str, tmp_path: Path) -> None:
    params, data, losses = small_params(model), load(model, "data"), Losses()
    estimator = Estimator(model_fn_of(model), str(tmp_path), RunConfig(tf_random_seed=1), params)
    estimator.train(lambda: data.train_input_fn(params), hooks=[losses], max_steps=30)
    assert len(losses.seen) == 30
    assert np.mean(losses.seen[-5:]) < 0.9 * np.mean(losses.seen[:5])

    found = estimator.evaluate(lambda: data.eval_input_fn(params), steps=2)
    assert METRICS[model] == set(found) - {"loss", "global_step"}
    assert all(math.isfinite(value) for value in found.values())
    assert all(
        0 <= value <= 1 for name, value in found.items() if not name.endswith(("perplexity", "loss", "step"))
    )
    if model.startswith("gpt"):  # no padding: every batch weighs the same
        assert found["eval/lm_perplexity"] == pytest.approx(math.exp(found["loss"]), rel=1e-4)

    def without_labels() -> tf.data.Dataset:
        dataset = data.eval_input_fn(params).take(1)
        return dataset.map(lambda *batch: batch[0]) if isinstance(dataset.element_spec, tuple) else dataset

    predictions = list(estimator.predict(without_labels))
    assert len(predictions) == 8
    assert set(predictions[0]) == PREDICTIONS[model]


@pytest.mark.parametrize("model", [name for name in NAMES if name not in ("gpt3", "roberta")])
def test_half_precision_computes_the_same_to_its_digits(model: str) -> None:
    """gpt3 and roberta are gpt2's and bert's networks."""
    losses, _ = run_steps(model)
    for kind in ("float16", "bfloat16"):
        half_losses, op_types = run_steps(model, mixed_precision=True, fp16_type=kind)
        assert np.isfinite(half_losses).all()
        np.testing.assert_allclose(half_losses, losses, rtol=0.05)
        products = {dtype for name, dtype in op_types if name in PRODUCTS}
        assert tf.as_dtype(kind) in products


def run_steps(model: str, **changes: Any) -> tuple[list[float], list[tuple[str, Any]]]:
    """Losses of the first steps without dropout, and the type of each op's output."""
    quiet = {name: 0.0 for name in ("dropout_rate", "attention_dropout_rate") if model != "unet"}
    if model == "t5":
        quiet.pop("attention_dropout_rate")
    params = small_params(model, **quiet, **changes)
    params["optimizer"]["learning_rate"] = 0.001
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(1)
        tf.compat.v1.train.get_or_create_global_step()
        element = tf.compat.v1.data.make_one_shot_iterator(
            load(model, "data").train_input_fn(params)
        ).get_next()
        features, labels = element if isinstance(element, tuple) else (element, None)
        spec = load(model, "model").model_fn(features, labels, ModeKeys.TRAIN, params)
        assert spec.loss.dtype == tf.float32
        assert all(variable.dtype.base_dtype == tf.float32 for variable in tf.compat.v1.trainable_variables())
        session.run(tf.compat.v1.global_variables_initializer())
        losses = [float(session.run([spec.loss, spec.train_op])[0]) for _ in range(2)]
        types = [(op.type, op.outputs[0].dtype) for op in graph.get_operations() if op.outputs]
    return losses, types


CONFIGS = [path for name in NAMES for path in sorted((MODELS / name / "configs").glob("*.yaml"))]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_every_config_is_valid_and_says_when_it_is_for_planning_only(config: Path) -> None:
    model = config.parts[-3]
    params = get_params(config)
    for section, kind in load(model, "utils").PARAMS_SCHEMA.items():
        assert set(params[section]) <= set(kind.model_fields)
        kind(**params[section])
    head = config.read_text().split("train_input:")[0]
    assert ("Plan-only" in head) == (config.stem != "params")
