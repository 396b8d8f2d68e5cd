"""What became of tf.contrib's parts: where the same thing is now, or what to do instead."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from portwright.port.tensorflow_homes import ESTIMATOR, INNER

# The same function or class by another name below `tf`; * stands for the last part of the name.
HOMES = {
    "data.map_and_batch": "data.experimental.map_and_batch",
    "data.parallel_interleave": "data.experimental.parallel_interleave",
    "data.shuffle_and_repeat": "data.experimental.shuffle_and_repeat",
    "data.group_by_window": "data.experimental.group_by_window",
    "data.bucket_by_sequence_length": "data.experimental.bucket_by_sequence_length",
    "data.ignore_errors": "data.experimental.ignore_errors",
    "data.unbatch": "data.experimental.unbatch",
    "data.scan": "data.experimental.scan",
    "data.unique": "data.experimental.unique",
    "data.enumerate_dataset": "data.experimental.enumerate_dataset",
    "data.prefetch_to_device": "data.experimental.prefetch_to_device",
    "data.sample_from_datasets": "compat.v1.data.experimental.sample_from_datasets",
    "data.choose_from_datasets": "compat.v1.data.experimental.choose_from_datasets",
    "data.make_csv_dataset": "compat.v1.data.experimental.make_csv_dataset",
    "data.Counter": "compat.v1.data.experimental.Counter",
    "data.AUTOTUNE": "data.experimental.AUTOTUNE",
    "data.get_single_element": "data.experimental.get_single_element",
    "cluster_resolver.TPUClusterResolver": "distribute.cluster_resolver.TPUClusterResolver",
    "cluster_resolver.SlurmClusterResolver": "distribute.cluster_resolver.SlurmClusterResolver",
    "cluster_resolver.SimpleClusterResolver": "distribute.cluster_resolver.SimpleClusterResolver",
    "cluster_resolver.UnionClusterResolver": "distribute.cluster_resolver.UnionResolver",
    "distribute.MirroredStrategy": "compat.v1.distribute.MirroredStrategy",
    "distribute.OneDeviceStrategy": "compat.v1.distribute.OneDeviceStrategy",
    "framework.get_or_create_global_step": "compat.v1.train.get_or_create_global_step",
    "framework.get_global_step": "compat.v1.train.get_global_step",
    "framework.create_global_step": "compat.v1.train.create_global_step",
    "framework.init_from_checkpoint": "compat.v1.train.init_from_checkpoint",
    "framework.list_variables": "train.list_variables",
    "framework.load_checkpoint": "train.load_checkpoint",
    "framework.load_variable": "train.load_variable",
    "framework.nest.flatten": "nest.flatten",
    "framework.nest.map_structure": "nest.map_structure",
    "framework.nest.pack_sequence_as": "nest.pack_sequence_as",
    "framework.nest.assert_same_structure": "nest.assert_same_structure",
    "layers.flatten": "compat.v1.layers.flatten",
    "rnn.BasicLSTMCell": "compat.v1.nn.rnn_cell.BasicLSTMCell",
    "rnn.LSTMCell": "compat.v1.nn.rnn_cell.LSTMCell",
    "rnn.GRUCell": "compat.v1.nn.rnn_cell.GRUCell",
    "rnn.BasicRNNCell": "compat.v1.nn.rnn_cell.BasicRNNCell",
    "rnn.MultiRNNCell": "compat.v1.nn.rnn_cell.MultiRNNCell",
    "rnn.DropoutWrapper": "compat.v1.nn.rnn_cell.DropoutWrapper",
    "rnn.ResidualWrapper": "compat.v1.nn.rnn_cell.ResidualWrapper",
    "rnn.DeviceWrapper": "compat.v1.nn.rnn_cell.DeviceWrapper",
    "rnn.LSTMStateTuple": "compat.v1.nn.rnn_cell.LSTMStateTuple",
    "rnn.RNNCell": "compat.v1.nn.rnn_cell.RNNCell",
    "rnn.static_rnn": "compat.v1.nn.static_rnn",
    "rnn.static_bidirectional_rnn": "compat.v1.nn.static_bidirectional_rnn",
    "saved_model.save_keras_model": "keras.models.save_model",
    "autograph.to_graph": "autograph.to_graph",
    "util.constant_value": "get_static_value",
}
# By the longest start: what to do by hand.
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
    """Where a part of tf.contrib is now: below `tf`, in portwright.tensorflow, or in a module of portwright.compat."""

    package: str  # "tensorflow", "portwright.tensorflow" or "portwright.compat.MODULE"
    name: str


@cache
def home_of(name: str) -> Home | None:
    """The home of a name below tf.contrib, where the same thing has one."""
    if name in HOMES:
        return Home("tensorflow", HOMES[name])
    from portwright.compat.contrib_names import contrib_modules  # which chooses the Keras of this process

    module, _, last = name.rpartition(".")
    place = contrib_modules().get(f"tensorflow.contrib.{module}", {}).get(last, "")
    package, _, rest = place.partition(":")
    if not rest:
        return None
    if package == "tensorflow.compat.v1":
        return Home("tensorflow", "compat.v1." + rest.replace(":", "."))
    if package.startswith("portwright.tensorflow"):
        inner = package.removeprefix("portwright.tensorflow").lstrip(".")
        if rest in ESTIMATOR or not inner:
            return Home("portwright.tensorflow", rest)
        return Home("portwright.tensorflow", f"{inner}.{rest}") if inner in (*INNER, "tpu") else None
    if package.startswith("portwright.compat."):
        return Home(package, rest.replace(":", "."))
    return None


def advice(name: str) -> str:
    """What to do about a name below tf.contrib that has no home."""
    while name:
        if name in BY_HAND:
            return BY_HAND[name]
        name = name.rpartition(".")[0]
    return "It left with TensorFlow 1: write it with tf.compat.v1, or copy its source into the project."
