"""Trains by the real tf.estimator or by ours, as asked on stdin, and answers with milliseconds a step: a process of benchmarks/estimator.py.

A listener of checkpoints takes the time from one save to the next, so that neither has a hook that looks at every step, and starting up does not count.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
WHICH = sys.argv[1]
if WHICH == "real":
    import tensorflow as tf

    est = tf.estimator
else:
    import portwright.tensorflow as est

    est.prepare()
    import tensorflow as tf
import numpy as np  # noqa: E402
from estimator_bundles import measure_bundle  # noqa: E402

v1 = tf.compat.v1
v1.logging.set_verbosity(v1.logging.ERROR)


def mlp_input() -> Any:
    draw = np.random.RandomState(0)
    images, labels = draw.rand(2048, 784).astype(np.float32), draw.randint(0, 10, 2048)
    data = tf.data.Dataset.from_tensor_slices((images, labels)).cache().shuffle(2048).repeat()
    return data.batch(64, drop_remainder=True).prefetch(2)


def late_input() -> Any:
    """Bytes that are standardised image by image, and no prefetch, as it is often forgotten."""
    draw = np.random.RandomState(0)
    images, labels = draw.randint(0, 255, (2048, 784)).astype(np.uint8), draw.randint(0, 10, 2048)

    def standardise(image: Any, label: Any) -> Any:
        x = tf.cast(image, tf.float32) / 255.0
        return (x - tf.reduce_mean(x)) / (tf.math.reduce_std(x) + 1e-3), label

    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(2048).repeat()
    return data.map(standardise).batch(64, drop_remainder=True)


def mlp(features: Any, labels: Any, mode: str) -> Any:
    x = features
    for number in range(3):
        x = tf.keras.layers.Dense(128, activation="relu", name=f"hidden_{number}")(x)
    return _spec(
        mode, tf.keras.layers.Dense(10, name="out")(x), labels, v1.train.MomentumOptimizer(0.01, 0.9)
    )


def bert_input() -> Any:
    draw = np.random.RandomState(0)
    ids = draw.randint(0, 2000, (256, 64)).astype(np.int32)
    data = tf.data.Dataset.from_tensor_slices((ids, ids)).cache().shuffle(256).repeat()
    return data.batch(8, drop_remainder=True).prefetch(2)


def bert(features: Any, labels: Any, mode: str) -> Any:
    """Two encoder layers of width 128, written by hand in ops that both releases have."""
    batch, length, width, heads = 8, 64, 128, 4

    def dense(x: Any, size: int, name: str, activation: Any = None) -> Any:
        return tf.keras.layers.Dense(size, activation=activation, name=name)(x)

    def norm(x: Any, name: str) -> Any:
        return tf.keras.layers.LayerNormalization(epsilon=1e-6, name=name)(x)

    x = tf.keras.layers.Embedding(2000, width, name="tokens")(features)
    x = x + v1.get_variable("positions", [length, width])
    for layer in range(2):
        q, k, v = (
            tf.transpose(
                tf.reshape(dense(x, width, f"{part}_{layer}"), [batch, length, heads, width // heads]),
                [0, 2, 1, 3],
            )
            for part in ("query", "key", "value")
        )
        weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / (width // heads) ** 0.5)
        mixed = tf.reshape(tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3]), [batch, length, width])
        x = norm(x + dense(mixed, width, f"output_{layer}"), f"norm_a_{layer}")
        inner = dense(x, 4 * width, f"inner_{layer}", tf.nn.gelu)
        x = norm(x + dense(inner, width, f"outer_{layer}"), f"norm_b_{layer}")
    return _spec(mode, dense(x, 2000, "vocabulary"), labels, v1.train.AdamOptimizer(1e-4))


def _spec(mode: str, logits: Any, labels: Any, optimizer: Any) -> Any:
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    step = v1.train.get_global_step()
    return est.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, global_step=step))


class Between(v1.train.CheckpointSaverListener):
    """Milliseconds a step from each save to the next."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._last: tuple[float, int] | None = None

    def before_save(self, session: Any, global_step_value: int) -> None:
        if self._last is not None and global_step_value > self._last[1]:
            seconds, step = self._last
            self.values.append(1000 * (time.perf_counter() - seconds) / (global_step_value - step))

    def after_save(self, session: Any, global_step_value: int) -> None:
        self._last = (time.perf_counter(), global_step_value)


WORKLOADS = {
    "mlp": (mlp, mlp_input, 300),
    "bert": (bert, bert_input, 10),
    "late": (mlp, late_input, 100),
}


def measure(workload: str, options: dict[str, Any]) -> float:
    """The median over stretches, the first one left out."""
    if workload == "bundle":
        return measure_bundle(mlp_input, stretch=300, **options)
    os.environ["PORTWRIGHT_TF_PREFETCH"] = "1" if options.pop("prefetch", False) else "0"
    model, data, stretch = WORKLOADS[workload]
    listener = Between()
    session_config = None
    if options.pop("xla", False):
        session_config = v1.ConfigProto()
        session_config.graph_options.optimizer_options.global_jit_level = v1.OptimizerOptions.ON_1
    with tempfile.TemporaryDirectory() as folder:
        config = est.RunConfig(
            folder, save_checkpoints_steps=stretch, session_config=session_config, **options
        )
        est.Estimator(model, config=config).train(data, max_steps=6 * stretch, saving_listeners=[listener])
    return statistics.median(listener.values[1:])


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps({"tensorflow": tf.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(**json.loads(line))), file=answers, flush=True)
