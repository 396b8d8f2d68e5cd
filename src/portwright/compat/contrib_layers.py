"""Dense layers and their like of tf.contrib.layers, with its names of variables: checkpoints of old code stay readable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from portwright.compat.contrib_initializers import xavier_initializer
from portwright.compat.contrib_scopes import add_arg_scope
from portwright.compat.contrib_variables import collect, model_variable
from portwright.errors import UserError, suggest

OPTIMIZER_SUMMARIES = ("learning_rate", "loss", "gradients", "gradient_norm")
_OPTIMIZERS = {
    "Adagrad": tf.train.AdagradOptimizer,
    "Adam": tf.train.AdamOptimizer,
    "Ftrl": tf.train.FtrlOptimizer,
    "Momentum": lambda learning_rate: tf.train.MomentumOptimizer(learning_rate, momentum=0.9),
    "RMSProp": tf.train.RMSPropOptimizer,
    "SGD": tf.train.GradientDescentOptimizer,
}


class Options(NamedTuple):
    """The arguments that every layer with weights ends with, and what they do."""

    activation_fn: Callable[..., Any] | None = tf.nn.relu
    normalizer_fn: Callable[..., Any] | None = None
    normalizer_params: Mapping[str, Any] | None = None
    weights_initializer: Any = None
    weights_regularizer: Any = None
    biases_initializer: Any = tf.zeros_initializer()
    biases_regularizer: Any = None
    reuse: Any = None
    variables_collections: Any = None
    outputs_collections: Any = None
    trainable: bool = True
    scope: Any = None

    def weights(self, name: str, shape: list[int], dtype: Any, initializer: Any = None) -> Any:
        made = initializer or self.weights_initializer or xavier_initializer()
        return model_variable(
            name, shape, dtype, made, self.weights_regularizer, self.trainable, self.variables_collections
        )

    def finish(self, outputs: Any, num_outputs: int, dtype: Any, name: str) -> Any:
        """Applies a norm or a bias, and an activation, and adds the output to the graph's collections."""
        if self.normalizer_fn is not None:
            outputs = self.normalizer_fn(outputs, **(self.normalizer_params or {}))
        elif self.biases_initializer is not None:
            bias = model_variable(
                "biases", [num_outputs], dtype, self.biases_initializer, self.biases_regularizer, self.trainable,
                self.variables_collections,
            )  # fmt: skip
            outputs = tf.nn.bias_add(outputs, bias)
        if self.activation_fn is not None:
            outputs = self.activation_fn(outputs)
        return collect(self.outputs_collections, name, outputs)


@add_arg_scope
def fully_connected(inputs: Any, num_outputs: int, *given: Any, **named: Any) -> Any:
    """A dense layer over the last axis."""
    options = Options(*given, **named)
    with tf.variable_scope(options.scope, "fully_connected", [inputs], reuse=options.reuse) as opened:
        inputs = tf.convert_to_tensor(inputs)
        size, dtype = inputs.shape.as_list()[-1], inputs.dtype.base_dtype
        if size is None:
            raise UserError(f"the last axis of {inputs} has no size.", "Set it: x.set_shape([None, SIZE]).")
        weights = options.weights("weights", [size, num_outputs], dtype)
        outputs = (
            tf.tensordot(inputs, weights, [[inputs.shape.ndims - 1], [0]])
            if inputs.shape.ndims > 2
            else inputs @ weights
        )
        return options.finish(outputs, num_outputs, dtype, opened.name)


def linear(*args: Any, **kwargs: Any) -> Any:
    """A dense layer without activation."""
    return fully_connected(*args, **{"activation_fn": None, **kwargs})


@add_arg_scope
def flatten(inputs: Any, outputs_collections: Any = None, scope: Any = None) -> Any:
    """All axes but the first as one."""
    with tf.name_scope(scope, "Flatten", [inputs]) as name:
        return collect(outputs_collections, name, tf.layers.flatten(tf.convert_to_tensor(inputs)))


@add_arg_scope
def dropout(
    inputs: Any,
    keep_prob: Any = 0.5,
    noise_shape: Any = None,
    is_training: Any = True,
    outputs_collections: Any = None,
    scope: Any = None,
    seed: int | None = None,
) -> Any:
    """Keeps each value with a probability, in training."""
    with tf.variable_scope(scope, "Dropout", [inputs]) as opened:
        inputs = tf.convert_to_tensor(inputs)
        if is_training is True:
            outputs = tf.nn.dropout(inputs, rate=1 - keep_prob, noise_shape=noise_shape, seed=seed)
        elif is_training is False:
            outputs = inputs
        else:
            outputs = tf.cond(
                is_training,
                lambda: tf.nn.dropout(inputs, rate=1 - keep_prob, noise_shape=noise_shape, seed=seed),
                lambda: tf.identity(inputs),
            )
        return collect(outputs_collections, opened.name, outputs)


@add_arg_scope
def softmax(logits: Any, scope: Any = None) -> Any:
    """Softmax over the last axis."""
    with tf.variable_scope(scope, "softmax", [logits]):
        return tf.nn.softmax(logits)


@add_arg_scope
def one_hot_encoding(
    labels: Any,
    num_classes: int,
    on_value: float = 1.0,
    off_value: float = 0.0,
    outputs_collections: Any = None,
    scope: Any = None,
) -> Any:
    """Labels as vectors."""
    with tf.name_scope(scope, "OneHotEncoding", [labels]) as name:
        made = tf.one_hot(tf.cast(labels, tf.int64), num_classes, on_value=on_value, off_value=off_value)
        return collect(outputs_collections, name, made)


def embed_sequence(
    ids: Any,
    vocab_size: int | None = None,
    embed_dim: int | None = None,
    unique: bool = False,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    scope: Any = None,
    reuse: Any = None,
) -> Any:
    """Rows of a table of embeddings."""
    if not reuse and (vocab_size is None or embed_dim is None):
        raise UserError("embed_sequence has no vocab_size or no embed_dim.", "Give both.")
    with tf.variable_scope(scope, "EmbedSequence", [ids], reuse=reuse):
        shape = None if reuse else [vocab_size, embed_dim]
        table = model_variable("embeddings", shape, tf.float32, initializer, regularizer, trainable)
        return tf.nn.embedding_lookup(table, ids)


def repeat(inputs: Any, repetitions: int, layer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Applies a layer several times, each time in its own scope."""
    scope = kwargs.pop("scope", None)
    with tf.variable_scope(scope, "Repeat", [inputs]):
        name = getattr(layer, "__name__", "repeat")
        for index in range(repetitions):
            inputs = layer(
                inputs, *args, scope=f"{scope if isinstance(scope, str) else name}_{index + 1}", **kwargs
            )
        return inputs


def stack(inputs: Any, layer: Callable[..., Any], stack_args: Any, **kwargs: Any) -> Any:
    """Applies a layer once for each set of arguments."""
    scope = kwargs.pop("scope", None)
    with tf.variable_scope(scope, "Stack", [inputs]):
        name = scope if isinstance(scope, str) else layer.__name__
        for index, one in enumerate(stack_args):
            words = one if isinstance(one, (list, tuple)) else [one]
            inputs = layer(inputs, *words, scope=f"{name}_{index + 1}", **kwargs)
        return inputs


def optimize_loss(
    loss: Any,
    global_step: Any,
    learning_rate: Any,
    optimizer: Any,
    gradient_noise_scale: float | None = None,
    gradient_multipliers: Mapping[Any, Any] | None = None,
    clip_gradients: Any = None,
    learning_rate_decay_fn: Callable[[Any, Any], Any] | None = None,
    update_ops: Any = None,
    variables: Any = None,
    name: str | None = None,
    summaries: Any = None,
    colocate_gradients_with_ops: bool = False,
    increment_global_step: bool = True,
) -> Any:
    """The op that makes one step, and whose value is the loss."""
    if gradient_noise_scale is not None:
        raise UserError("optimize_loss does not add gradient noise.", "Leave gradient_noise_scale out.")
    with tf.variable_scope(name, "OptimizeLoss", [loss, global_step]):
        global_step = tf.train.get_global_step() if global_step is None else global_step
        updates = set(tf.get_collection(tf.GraphKeys.UPDATE_OPS) if update_ops is None else update_ops)
        with tf.control_dependencies(list(updates)):
            loss = tf.identity(loss)
        rate, shown = (
            learning_rate,
            ("loss", "learning_rate", "global_gradient_norm") if summaries is None else summaries,
        )
        if isinstance(rate, float):
            rate = tf.get_variable(
                "learning_rate", [], trainable=False, initializer=tf.constant_initializer(rate)
            )
        if rate is not None and learning_rate_decay_fn is not None:
            rate = learning_rate_decay_fn(rate, global_step)
            if "learning_rate" in shown:
                tf.summary.scalar("learning_rate", rate)
        made = _make_optimizer(optimizer, rate)
        pairs = made.compute_gradients(
            loss,
            variables or tf.trainable_variables(),
            colocate_gradients_with_ops=colocate_gradients_with_ops,
        )
        if gradient_multipliers:
            by_name = {
                getattr(k, "op", k) if not isinstance(k, str) else k: v
                for k, v in gradient_multipliers.items()
            }
            pairs = [
                (g if g is None or not (m := by_name.get(v.op, by_name.get(v.name))) else g * m, v)
                for g, v in pairs
            ]
        _show_norm(pairs, shown, "gradient_norm")
        if callable(clip_gradients):
            pairs = clip_gradients(pairs)
        elif clip_gradients is not None:
            gradients, weights = zip(*pairs, strict=True)
            pairs = list(zip(tf.clip_by_global_norm(gradients, clip_gradients)[0], weights, strict=True))
        if "loss" in shown:
            tf.summary.scalar("loss", loss)
        if clip_gradients is not None:
            _show_norm(pairs, shown, "clipped_gradient_norm")
        step = made.apply_gradients(pairs, global_step if increment_global_step else None, name="train")
        with tf.control_dependencies([step]):
            return tf.identity(loss)


def _show_norm(pairs: Any, shown: Any, name: str) -> None:
    if {"global_gradient_norm", "gradient_norm"} & set(shown):
        tf.summary.scalar(f"global_norm/{name}", tf.global_norm([gradient for gradient, _ in pairs]))


def _make_optimizer(optimizer: Any, rate: Any) -> Any:
    if isinstance(optimizer, str):
        if optimizer not in _OPTIMIZERS:
            raise UserError(f"optimizer is '{optimizer}'.", suggest(optimizer, _OPTIMIZERS))
        return _OPTIMIZERS[optimizer](learning_rate=rate)
    if isinstance(optimizer, type):
        return optimizer(learning_rate=rate)
    if isinstance(optimizer, tf.train.Optimizer):
        return optimizer
    if callable(optimizer):
        return optimizer() if rate is None else optimizer(rate)
    raise UserError(f"optimizer is {optimizer!r}.", "Give a name, a class, an optimizer or a function.")
