"""Norms of tf.contrib.layers, with its names of variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from portwright.compat.contrib_scopes import add_arg_scope
from portwright.compat.contrib_variables import collect, model_variable
from portwright.errors import UserError

_LAYER_EPSILON = 1e-12  # contrib's; float16 would round it to nothing, and had 1e-3


def _activate(outputs: Any, activation_fn: Callable[..., Any] | None, collections: Any, name: str) -> Any:
    return collect(collections, name, outputs if activation_fn is None else activation_fn(outputs))


def _beta_and_gamma(
    shape: Any, dtype: Any, center: bool, scale: bool, trainable: bool, collections: Any
) -> Any:
    """The variables beta and gamma of a norm, each None if it is not wanted."""
    return (
        model_variable(name, shape, dtype, start, None, trainable, collections) if is_there else None
        for name, start, is_there in (
            ("beta", tf.zeros_initializer(), center), ("gamma", tf.ones_initializer(), scale),
        )
    )  # fmt: skip


@add_arg_scope
def layer_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    activation_fn: Callable[..., Any] | None = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    scope: Any = None,
) -> Any:
    """Normalizes over the axes from `begin_norm_axis` on; gamma and beta have the shape of those from `begin_params_axis` on."""
    with tf.variable_scope(scope, "LayerNorm", [inputs], reuse=reuse) as opened:
        inputs = tf.convert_to_tensor(inputs)
        rank = inputs.shape.ndims
        dtype = inputs.dtype.base_dtype
        first_norm = begin_norm_axis if begin_norm_axis >= 0 else rank + begin_norm_axis
        first_param = begin_params_axis if begin_params_axis >= 0 else rank + begin_params_axis
        if first_norm >= rank or first_param >= rank:
            raise UserError(
                f"layer_norm of {inputs} begins at axis {max(first_norm, first_param)}.", f"It has {rank}."
            )
        shape = inputs.shape[first_param:]
        beta, gamma = _beta_and_gamma(shape, dtype, center, scale, trainable, variables_collections)
        mean, variance = tf.nn.moments(inputs, list(range(first_norm, rank)), keep_dims=True)
        epsilon = 1e-3 if dtype == tf.float16 else _LAYER_EPSILON
        outputs = tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, epsilon)
        outputs.set_shape(inputs.shape)
        return _activate(outputs, activation_fn, outputs_collections, opened.name)


@add_arg_scope
def batch_norm(
    inputs: Any,
    decay: float = 0.999,
    center: bool = True,
    scale: bool = False,
    epsilon: float = 0.001,
    activation_fn: Callable[..., Any] | None = None,
    param_initializers: Mapping[str, Any] | None = None,
    param_regularizers: Mapping[str, Any] | None = None,
    updates_collections: Any = tf.GraphKeys.UPDATE_OPS,
    is_training: Any = True,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    batch_weights: Any = None,
    fused: bool | None = None,
    data_format: str = "NHWC",
    zero_debias_moving_mean: bool = False,
    scope: Any = None,
    renorm: bool = False,
    renorm_clipping: Any = None,
    renorm_decay: float = 0.99,
    adjustment: Any = None,
) -> Any:
    """Batch normalization; ops in `updates_collections` update the moving averages, or, if that is None, the call itself."""
    if renorm or batch_weights is not None or adjustment is not None or zero_debias_moving_mean:
        raise UserError(
            "batch_norm has renorm, batch_weights, adjustment or zero_debias_moving_mean.", "Leave them out."
        )
    with tf.variable_scope(scope, "BatchNorm", [inputs], reuse=reuse) as opened:
        inputs = tf.convert_to_tensor(inputs)
        rank = inputs.shape.ndims
        axis = rank - 1 if data_format == "NHWC" or rank == 2 else 1
        size = inputs.shape.as_list()[axis]
        dtype = tf.float32 if inputs.dtype.base_dtype == tf.float16 else inputs.dtype.base_dtype

        def make(name: str, default: Any, is_trained: bool) -> Any:
            return model_variable(
                name, [size], dtype, (param_initializers or {}).get(name, default), (param_regularizers or {}).get(name),
                is_trained, variables_collections,
            )  # fmt: skip

        beta = make("beta", tf.zeros_initializer(), trainable) if center else None
        gamma = make("gamma", tf.ones_initializer(), trainable) if scale else None
        moving_mean = make("moving_mean", tf.zeros_initializer(), False)
        moving_variance = make("moving_variance", tf.ones_initializer(), False)
        axes = [index for index in range(rank) if index != axis]

        def of_batch() -> tuple[Any, Any]:
            mean, variance = tf.nn.moments(tf.cast(inputs, dtype), axes)
            if fused is not False and rank in (2, 4):  # the fused kernel's moving variance is unbiased
                count = tf.cast(tf.size(inputs) / size, dtype)
                unbiased = variance * (count / tf.maximum(count - 1.0, 1.0))
            else:
                unbiased = variance
            updates = [
                tf.assign_sub(moving_mean, (moving_mean - mean) * (1 - decay)),
                tf.assign_sub(moving_variance, (moving_variance - unbiased) * (1 - decay)),
            ]
            if updates_collections is None:
                with tf.control_dependencies(updates):
                    return tf.identity(mean), tf.identity(variance)
            if is_training is True:
                for update in updates:
                    tf.add_to_collections(updates_collections, update)
                return mean, variance
            # In the branch of a tf.cond: an op outside could not depend on the updates.
            with tf.control_dependencies(updates):
                return tf.identity(mean), tf.identity(variance)

        if is_training is True or is_training is False:
            mean, variance = of_batch() if is_training else (moving_mean, moving_variance)
        else:
            mean, variance = tf.cond(
                tf.cast(is_training, tf.bool),
                of_batch,
                lambda: (tf.identity(moving_mean), tf.identity(moving_variance)),
            )
        shape = [size if index == axis else 1 for index in range(rank)]

        def wide(value: Any) -> Any:
            return None if value is None else tf.reshape(value, shape)

        outputs = tf.nn.batch_normalization(
            tf.cast(inputs, dtype), wide(mean), wide(variance), wide(beta), wide(gamma), epsilon
        )
        outputs = tf.cast(outputs, inputs.dtype)
        outputs.set_shape(inputs.shape)
        return _activate(outputs, activation_fn, outputs_collections, opened.name)


def _over_groups(name: str, inputs: Any, groups: int | None, epsilon: float, options: dict[str, Any]) -> Any:
    with tf.variable_scope(options["scope"], name, [inputs], reuse=options["reuse"]) as opened:
        inputs = tf.convert_to_tensor(inputs)
        size = inputs.shape.as_list()[-1]
        dtype = inputs.dtype.base_dtype
        beta, gamma = _beta_and_gamma(
            [size], dtype, options["center"], options["scale"], options["trainable"], options["variables_collections"]
        )  # fmt: skip
        if groups is None:
            grouped, axes = inputs, list(range(1, inputs.shape.ndims - 1))
        else:
            if size % groups:
                raise UserError(f"group_norm has {groups} groups of {size} channels.", "Give a divisor.")
            grouped = tf.reshape(inputs, tf.concat([tf.shape(inputs)[:-1], [groups, size // groups]], 0))
            axes = [*range(1, inputs.shape.ndims - 1), inputs.shape.ndims]
        mean, variance = tf.nn.moments(grouped, axes, keep_dims=True)
        normed = (grouped - mean) * tf.rsqrt(variance + epsilon)
        outputs = tf.reshape(normed, tf.shape(inputs))
        outputs = outputs if gamma is None else outputs * gamma
        outputs = outputs if beta is None else outputs + beta
        outputs.set_shape(inputs.shape)
        return _activate(outputs, options["activation_fn"], options["outputs_collections"], opened.name)


@add_arg_scope
def instance_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    activation_fn: Callable[..., Any] | None = None,
    param_initializers: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    data_format: str = "NHWC",
    scope: Any = None,
) -> Any:
    """Norms over the places of each image and channel."""
    if data_format != "NHWC" or param_initializers:
        raise UserError("instance_norm has NCHW or param_initializers.", "Only NHWC with defaults is lent.")
    return _over_groups("InstanceNorm", inputs, None, epsilon, dict(locals()))


@add_arg_scope
def group_norm(
    inputs: Any,
    groups: int = 32,
    channels_axis: int = -1,
    reduction_axes: tuple[int, ...] = (-3, -2),
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    activation_fn: Callable[..., Any] | None = None,
    param_initializers: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
    mean_close_to_zero: bool = False,
) -> Any:
    """Norms over the places of each image and group of channels."""
    if channels_axis != -1 or tuple(reduction_axes) != (-3, -2) or param_initializers:
        raise UserError(
            "group_norm has other axes or param_initializers.", "Only images with channels last are lent."
        )
    return _over_groups("GroupNorm", inputs, groups, epsilon, dict(locals()))
