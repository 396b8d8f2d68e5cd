"""Where each part of tf.contrib is now, or what to use instead."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from portwright.port.tensorflow_homes import ESTIMATOR, INNER

# What to do by hand, by the longest matching prefix of the name.
BY_HAND = {
    "slim": "Install tf_slim and write `import tf_slim as slim`: it is the same code.",
    "layers": "Write it with tf.keras.layers, or install tf_slim, which has contrib.layers as tf_slim.layers.",
    "layers.layer_norm": "Use tf.keras.layers.LayerNormalization(axis=-1, epsilon=1e-12), or tf_slim.layers.layer_norm, which keeps the "
    "variables' names LayerNorm/beta and LayerNorm/gamma.",
    "layers.fully_connected": "Use tf.compat.v1.layers.dense(x, units, activation=tf.nn.relu): contrib's default activation is relu, its weights "
    "are called weights and biases.",
    "layers.variance_scaling_initializer": "Use tf.compat.v1.variance_scaling_initializer(scale=factor, mode='fan_in'): its truncated normal has a "
    "deviation that is 0.3% smaller.",
    "layers.optimize_loss": "Make the optimizer, and call minimize(loss, global_step) in model_fn.",
    "layers.batch_norm": "Use tf.compat.v1.layers.batch_normalization(x, momentum=0.999, scale=False, training=...).",
    "layers.dropout": "Use tf.compat.v1.layers.dropout(x, rate=1 - keep_prob, training=...).",
    "opt.AdamWOptimizer": "Use optimizer_type: adamw of portwright.tensorflow's make_train_op, or write the decay into model_fn.",
    "opt": "Use an optimizer of tf.compat.v1.train, or of portwright.tensorflow.",
    "training.HParams": "Use a dict: model_fn gets its settings as params, from configs/params.yaml.",
    "training": "Write it in model_fn; there is no other home.",
    "summary": "Use tf.compat.v1.summary in model_fn.",
    "metrics": "Use tf.compat.v1.metrics, whose order is (labels, predictions), where contrib's is (predictions, labels).",
    "lookup": "Look words up in input_fn, with tf.lookup.StaticHashTable or tf.keras.layers.StringLookup.",
    "crf": "The CRF layer needs decoding that an accelerator does not have: score on the accelerator and decode on the host.",
    "seq2seq": "Write the decoder with tf.keras layers; tensorflow_addons, which held this code, is no longer kept up.",
    "rnn": "Use tf.keras.layers.LSTM, GRU or RNN.",
    "framework.arg_scope": "Give the arguments to each layer, or install tf_slim, which has arg_scope.",
    "framework": "Most of it is in tf.train, tf.nest and tf.compat.v1.train.",
    "image": "Augment in input_fn with tf.image; rotations are in tf.keras.layers.RandomRotation.",
    "learn": "Write a model_fn for portwright.tensorflow.Estimator.",
    "predictor": "Load the export with tf.saved_model.load(path).signatures['serving_default'].",
    "distribute": "Use tf.distribute, or TF_CONFIG with several workers.",
    "tpu": "Leave it out: it speaks to a TPU's runtime.",
    "estimator": "Use a head of portwright.tensorflow, or write the loss and metrics in model_fn.",
}


@dataclass(frozen=True)
class Home:
    """The new place of a name of tf.contrib: in tensorflow, portwright.tensorflow or portwright.compat."""

    package: str  # "tensorflow", "portwright.tensorflow" or "portwright.compat.MODULE"
    name: str


@cache
def home_of(name: str) -> Home | None:
    """The new place of a name below tf.contrib; None if there is none."""
    from portwright.compat.contrib_names import contrib_modules  # late: this chooses the Keras

    module, _, last = name.rpartition(".")
    place = contrib_modules().get(f"tensorflow.contrib.{module}", {}).get(last, "")
    package, _, rest = place.partition(":")
    if not rest:
        return None
    if package == "tensorflow.compat.v1":
        return Home("tensorflow", "compat.v1." + rest.replace(":", "."))
    if package.startswith("portwright.tensorflow"):
        inner = package.removeprefix("portwright.tensorflow").lstrip(".")
        if inner in (*INNER, "tpu"):
            return Home("portwright.tensorflow", f"{inner}.{rest}")
        return Home("portwright.tensorflow", rest) if rest in ESTIMATOR or not inner else None
    if package.startswith("portwright.compat."):
        return Home(package, rest.replace(":", "."))
    return None


def advice(name: str) -> str:
    """What to do about a name below tf.contrib without a new place."""
    while name:
        if name in BY_HAND:
            return BY_HAND[name]
        name = name.rpartition(".")[0]
    return "It left with TensorFlow 1: write it with tf.compat.v1, or copy its source into the project."
