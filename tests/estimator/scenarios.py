"""Estimator code as people wrote it, run by the real tf.estimator (TensorFlow 2.15) or by ours.

`python scenarios.py WHICH '[[NAME, ACTION, FOLDER], ...]'`: WHICH is `real` or `ours`; ACTION is `init` (one step, and a checkpoint), `train` (20 steps more),
`evaluate` or `predict`. The outcomes are one JSON list, on the last line.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # its kernels changed between the releases
WHICH = sys.argv[1] if len(sys.argv) > 1 else "real"
if WHICH == "ours":
    import portwright.tensorflow as est

    est.prepare()
    import tensorflow as tf
else:
    import tensorflow as tf

    est = tf.estimator
import numpy as np  # noqa: E402

v1 = tf.compat.v1
NUM_STEPS = 20


def _images() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.RandomState(0)
    return draw.rand(200, 8, 8, 1).astype(np.float32), draw.randint(0, 10, 200).astype(np.int32)


def image_input(shuffle: bool, repeat: bool, batch_size: int = 16) -> Any:
    images, labels = _images()
    data = tf.data.Dataset.from_tensor_slices(({"image": images}, labels))
    if shuffle:
        data = data.shuffle(64)
    if repeat:
        data = data.repeat()
    return data.batch(batch_size, drop_remainder=repeat).prefetch(1)


def text_input(shuffle: bool, repeat: bool, batch_size: int = 8) -> Any:
    draw = np.random.RandomState(1)
    ids = draw.randint(0, 50, (120, 12)).astype(np.int32)
    data = tf.data.Dataset.from_tensor_slices((ids, ids[:, 0] % 2))
    if shuffle:
        data = data.shuffle(40, reshuffle_each_iteration=True)
    data = data.map(lambda x, y: ({"ids": x}, y))
    if repeat:
        data = data.repeat()
    return data.batch(batch_size, drop_remainder=repeat)


def _spec(mode: str, logits: Any, labels: Any, optimizer: Any, features: Any = None) -> Any:
    predictions = {"class": tf.argmax(logits, 1), "probabilities": tf.nn.softmax(logits)}
    if mode == est.ModeKeys.PREDICT:
        outputs = {"serving_default": est.export.PredictOutput(predictions)}
        return est.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    metrics = {
        "accuracy": v1.metrics.accuracy(labels, predictions["class"]),
        "mean_probability": v1.metrics.mean(predictions["probabilities"]),
    }
    train_op = None
    if mode == est.ModeKeys.TRAIN:
        updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(updates):
            train_op = optimizer().minimize(loss, global_step=v1.train.get_global_step())
    return est.EstimatorSpec(
        mode, loss=loss, train_op=train_op, predictions=predictions, eval_metric_ops=metrics
    )


def mlp(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Variables by hand, dropout by its graph seed, momentum."""
    x = tf.reshape(features["image"], [-1, 64])
    for number, width in enumerate((32, 16)):
        with v1.variable_scope(f"layer_{number}"):
            w = v1.get_variable("w", [int(x.shape[1]), width], initializer=v1.glorot_uniform_initializer())
            b = v1.get_variable("b", [width], initializer=v1.zeros_initializer())
            x = tf.nn.relu(tf.matmul(x, w) + b)
            if mode == est.ModeKeys.TRAIN:
                x = v1.nn.dropout(x, rate=0.1)
    with v1.variable_scope("out"):
        logits = tf.matmul(x, v1.get_variable("w", [16, 10], initializer=v1.glorot_uniform_initializer()))
    return _spec(mode, logits, labels, lambda: v1.train.MomentumOptimizer(params["rate"], 0.9))


def convolutions(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Keras layers, BatchNorm through UPDATE_OPS of v1 layers, Adam with a decaying rate."""
    training = mode == est.ModeKeys.TRAIN
    x = tf.keras.layers.Conv2D(8, 3, padding="same", name="conv")(features["image"])
    mean, variance = tf.nn.moments(x, [0, 1, 2])
    moving = v1.get_variable("moving_mean", [8], trainable=False, initializer=v1.zeros_initializer())
    if training:
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign_sub(moving, 0.1 * (moving - mean)))
    x = tf.nn.batch_normalization(x, mean if training else moving, variance, None, None, 1e-3)
    x = tf.nn.max_pool2d(tf.nn.relu(x), 2, 2, "SAME")
    x = tf.keras.layers.Flatten(name="flat")(x)
    logits = tf.keras.layers.Dense(10, name="dense")(x)

    def optimizer() -> Any:
        rate = v1.train.exponential_decay(params["rate"], v1.train.get_global_step(), 5, 0.9)
        v1.summary.scalar("rate", rate)
        return v1.train.AdamOptimizer(rate)

    return _spec(mode, logits, labels, optimizer)


def embedding(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Sparse gradients, Adagrad, a regularisation loss."""
    table = v1.get_variable("table", [50, 16], initializer=v1.random_normal_initializer(stddev=0.1, seed=3))
    x = tf.nn.embedding_lookup(table, features["ids"])
    x = tf.reduce_mean(tf.keras.layers.Dense(16, activation="tanh", name="mix")(x), axis=1)
    logits = tf.keras.layers.Dense(2, name="out")(x)
    return _spec(mode, logits, labels, lambda: v1.train.AdagradOptimizer(params["rate"]))


SCENARIOS = {
    "mlp": (mlp, image_input, {"rate": 0.05}),
    "convolutions": (convolutions, image_input, {"rate": 0.01}),
    "embedding": (embedding, text_input, {"rate": 0.1}),
}


class Losses(v1.train.SessionRunHook):
    """Every step's loss, as a user's own hook would take it."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._tensor: Any = None

    def begin(self) -> None:
        self._tensor = v1.get_collection(v1.GraphKeys.LOSSES)[-1]

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self._tensor)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.values.append(float(run_values.results))


def do(name: str, action: str, folder: str) -> dict[str, Any]:
    """Makes the estimator and asks it for one thing."""
    model, input_fn, params = SCENARIOS[name]
    config = est.RunConfig(
        model_dir=folder, tf_random_seed=11, save_checkpoints_steps=10, save_summary_steps=5
    )
    estimator = est.Estimator(model_fn=model, config=config, params=params)
    if action == "init":
        estimator.train(lambda: input_fn(True, True), max_steps=1)
        return {"checkpoint": estimator.latest_checkpoint()}
    if action == "train":
        hook = Losses()
        estimator.train(lambda: input_fn(True, True), hooks=[hook], steps=NUM_STEPS)
        return {"losses": hook.values, "variables": sorted(estimator.get_variable_names())}
    if action == "evaluate":
        found = estimator.evaluate(lambda: input_fn(False, False))
        return {key: float(value) for key, value in found.items()}
    if action == "predict":
        rows = estimator.predict(lambda: input_fn(False, False))
        return {"probabilities": [row["probabilities"].tolist() for row in rows]}
    raise SystemExit(f"unknown action {action}")


if __name__ == "__main__":
    print(json.dumps([do(*asked) for asked in json.loads(sys.argv[2])]))
