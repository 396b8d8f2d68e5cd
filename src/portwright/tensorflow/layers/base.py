"""The base class of all layers: Keras layers that work in a model_fn's graph and eagerly, in any precision."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from portwright.errors import PortwrightError, UserError

Dtype = Any
"""A type, its name, or a Keras policy: "float32", "mixed_float16", "mixed_bfloat16", ..."""


class BaseLayer(tf.keras.layers.Layer):  # type: ignore[misc]
    """A Keras layer whose precision is its `dtype`, or Keras's global policy where none is given.

    Parts of a layer get the policy of the layer. `training` is off unless it is given.
    """

    def __init__(self, *, dtype: Dtype = None, **kwargs: Any) -> None:
        if dtype is None:
            policy = tf.keras.mixed_precision.global_policy()
            # With TensorFlow 1's behaviour Keras would take the dtype of the first input.
            dtype = tf.keras.backend.floatx() if policy.name == "_infer" else policy
        super().__init__(dtype=dtype, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "call" in cls.__dict__:
            cls.call = _as_written(cls.__dict__["call"])
        if "__init__" in cls.__dict__:
            cls.__init__ = _storing_arguments(cls.__dict__["__init__"])  # type: ignore[method-assign]

    def clone(self, name: str) -> Any:
        """A new layer with the same arguments and its own weights."""
        args, kwargs = self._made_with
        return type(self)(*args, **{**kwargs, "name": name, "dtype": self.policy})

    @property
    def policy(self) -> Any:
        """The precision policy, to be passed to the layers in this one."""
        return self._dtype_policy

    def to_compute(self, x: Any) -> Any:
        """The tensor, cast to the dtype that the layer computes in."""
        return tf.cast(x, self.compute_dtype)

    def add_parameter(
        self, name: str, shape: tuple[int, ...], initializer: Callable[..., Any], *, trainable: bool = True
    ) -> Any:
        """Adds a weight that is cast where it is used: a lookup then casts the rows found, not the whole table."""
        return self.add_weight(
            name=name,
            shape=shape,
            dtype=self.variable_dtype,
            initializer=initializer,
            trainable=trainable,
            experimental_autocast=False,
        )


def _storing_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Makes `__init__` store its arguments for `clone`: those of the layer's own class, not of its base classes."""

    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        if "_made_with" not in self.__dict__:
            # Not by `self._made_with = ...`: Keras would track the layers among the arguments.
            object.__setattr__(self, "_made_with", (args, kwargs))
        init(self, *args, **kwargs)

    return wrapped


def _as_written(call: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps AutoGraph from rewriting a `call`, and Keras from changing the text of its errors."""

    @functools.wraps(call)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except PortwrightError as error:
            error._keras_call_info_injected = True  # type: ignore[attr-defined]
            raise

    # Keras reads from this attribute whether `call` takes `training`; it does not follow __wrapped__.
    wrapped.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
    return tf.autograph.experimental.do_not_convert(wrapped)  # type: ignore[no-any-return]


def shape_of(x: Any) -> list[Any]:
    """The dimensions of a tensor: numbers where they are known, tensors where they are not."""
    static = x.shape.as_list()
    if None not in static:
        return list(static)
    dynamic = tf.shape(x)
    return [dynamic[index] if size is None else size for index, size in enumerate(static)]


def wide_type(dtype: Any) -> Any:
    """float32, or float64 for float64."""
    return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32


def last_width(x: Any, what: str) -> int:
    """The last dimension, which must be known."""
    width = x.shape[-1] if x.shape.rank else None
    if width is None:
        raise UserError(
            f"The last dimension of {what} is unknown: its shape is {x.shape}.",
            "Give a tensor whose width is static; tf.ensure_shape or set_shape tells TensorFlow what you know.",
        )
    return int(width)


def check_rate(name: str, rate: float) -> float:
    """Refuses a dropout rate outside of [0, 1)."""
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < 1:
        raise UserError(f"{name} is {rate!r}.", "Give a probability from 0 to below 1.")
    return float(rate)


def check_sizes(**sizes: Any) -> None:
    """Refuses sizes that are not whole numbers above 0."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UserError(f"{name} is {size!r}.", "Give a whole number above 0.")
